#!/bin/bash
# Build the images without Docker and without an image registry: docker/build.sh [ARCH] [TARGET...]
#
# Needs root, buildah and debootstrap. An image for another machine, ARCH arm64, is built without an emulator.
# Other settings are variables of the environment: TORCH, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS (a
# folder), BASE, WORK, and DRIVER: vfs works everywhere, overlay is faster.
set -euo pipefail

arch=${1:-amd64}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(client-slim client server)
work=${WORK:-/var/tmp/fedsz-images}
buildah=(buildah --storage-driver "${DRIVER:-vfs}" --root "$work/storage" --runroot "$work/run")
cd "$(dirname "$0")/.."
mkdir -p "$work"

base=${BASE:-localhost/debian}
if [ -z "${BASE:-}" ] && ! "${buildah[@]}" inspect "$base" >/dev/null 2>&1; then
    [ -d "$work/debian" ] || debootstrap --variant=minbase bookworm "$work/debian"
    made=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add -q "$made" "$work/debian" /
    "${buildah[@]}" commit -q --rm "$made" "$base"
fi

# The stages that build are of this machine whatever the image is for, which is said at the end.
options=(--isolation chroot --format docker --layers --pull-never)
options+=(--build-arg "TARGETARCH=$arch" --build-arg "BASE=$base")
for name in TORCH PIP_EXTRA_INDEX_URL PIP_FIND_LINKS; do
    [ -z "${!name:-}" ] || options+=(--build-arg "$name=${!name}")
done
[ ! -d "${PIP_FIND_LINKS:-}" ] || options+=(--volume "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
# So that a proxy's certificate, where there is a proxy, is trusted in the build as it is here. What the build writes there is
# dropped.
options+=(--volume /etc/ssl/certs:/etc/ssl/certs:O)
megabytes() { du -cs --block-size=1MB --apparent-size "$@" | tail -1 | cut -f1; }
for target in "${targets[@]}"; do
    "${buildah[@]}" build "${options[@]}" --target "$target" -f docker/Dockerfile -t "fedsz-$target:$arch" .
    container=$("${buildah[@]}" from --pull-never "fedsz-$target:$arch")
    if [ "$arch" != "$(dpkg --print-architecture)" ]; then
        "${buildah[@]}" config --arch "$arch" "$container"
        "${buildah[@]}" commit -q --format docker "$container" "fedsz-$target:$arch" >/dev/null
    fi
    root=$("${buildah[@]}" mount "$container")
    rm -rf "$work/$target-$arch"
    cp -a "$root" "$work/$target-$arch"
    "${buildah[@]}" rm "$container" >/dev/null
    echo "fedsz-$target:$arch $(megabytes "$work/$target-$arch") MB"
    [ "$target" = client-slim ] || echo "of these torch, and what it requires: $(cd "$work/$target-$arch/opt/fedsz" \
        && megabytes torch torchgen functorch sympy mpmath networkx jinja2 markupsafe fsspec filelock) MB"
done

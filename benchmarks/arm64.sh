#!/bin/bash
# Try an image for arm64 under QEMU. `fleet` runs a client of it with a server and a client of this machine; `streams` compares
# streams of the fleet's model, or of MODEL's:
#
#   sudo TORCH=2.10.0 docker/build.sh arm64 client
#   sudo benchmarks/arm64.sh /var/tmp/fedsz-images/client-arm64 fleet streams
#
# Needs root, qemu-user-static, and an interpreter 3.11 with fedsz[train], which PYTHON names. All runs as the image's user, on a root
# that is read-only. QEMU_CPU is the processor: cortex-a76 is that of a Pi 5, and torch 2.10 ends on the cortex-a72 of a Pi 4. WORK is
# deleted at the end.
set -euo pipefail
given=$(realpath "$1")
[ -z "${MODEL:-}" ] || MODEL=$(realpath "$MODEL")
parts=("${@:2}")
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
work=${WORK:-/var/tmp/fedsz-arm64}
root=$work/root  # where the image is mounted
export PATH=$(dirname "$python"):$PATH WHEELS=$work/wheels OMP_NUM_THREADS=1 QEMU_CPU=${QEMU_CPU:-cortex-a76}
emulator=/proc/sys/fs/binfmt_misc/qemu-aarch64

clean() {
    jobs -p | xargs -r kill 2>/dev/null || true
    for name in /tmp /dev /sys /proc ""; do ! mountpoint -q "$root$name" || umount "$root$name"; done
    [ -z "${registered:-}" ] || echo -1 > $emulator
    [ -z "${mounted:-}" ] || umount /proc/sys/fs/binfmt_misc
    rm -rf --one-file-system "$work"  # should a mount be left
}
trap clean EXIT

emulate() {
    mountpoint -q /proc/sys/fs/binfmt_misc || { mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && mounted=1; }
    [ -e $emulator ] || { grep '^:' /usr/lib/binfmt.d/qemu-aarch64.conf > /proc/sys/fs/binfmt_misc/register && registered=1; }
    mkdir -p "$root"
    mount -o bind,ro "$image" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs tmpfs "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    mkdir -m 1777 "$root/dev/shm"
    mknod -m 666 "$root/dev/null" c 1 3
    mknod -m 666 "$root/dev/urandom" c 1 9
}

user=1000:1000
there=(env HOME=/tmp PYTHONPATH=/opt/fedsz:/tmp/packages chroot "--userspec=$user" "$root" /usr/bin/python3)
carry() { cp -r "$@" "$root/tmp/" && chown -R "$user" "$root/tmp"; }
size() { echo "$1: $(du -s --block-size=1MB --apparent-size "$2" | cut -f1) MB"; }

try_fleet() {
    local version="import torch; print(torch.__version__)"
    size "packages" "$root/opt/fedsz"
    size "of these torch" "$root/opt/fedsz/torch"
    echo "torch: $("${there[@]}" -c "$version") there, $("$python" -c "$version") here"
    echo; echo "== a fleet"
    "$python" -m fedsz keys init --host 127.0.0.1 --dir "$work/keys" >&2
    "$python" -m fedsz keys client amd64 arm64 --dir "$work/keys" >&2
    carry "$work/keys"
    "$python" -m fedsz server --json --port 8471 --min-clients 2 --rounds 3 --deadline-factor 0 --reconnect-grace 120 \
        --run-dir "$work/run" --tls-cert "$work/keys/server.pem" --tls-key "$work/keys/server.key" --tls-ca "$work/keys/ca.pem" \
        > "$work/server.log" 2>&1 &
    server=$!
    client() {  # its name, its share, and where the keys are
        echo -m fedsz client --server 127.0.0.1:8471 --client-id "$1" --partition "$2" --max-wait 600 --tls-ca "$3/ca.pem" \
            --tls-cert "$3/clients/$1.pem" --tls-key "$3/clients/$1.key"
    }
    "$python" $(client amd64 0/2 "$work/keys") > "$work/amd64.log" 2>&1 &
    "${there[@]}" $(client arm64 1/2 /tmp/keys) > "$work/arm64.log" 2>&1 &
    emulated=$!
    while peak=$(grep -h VmHWM "/proc/$emulated/status"); do last=$peak; sleep 1; done 2>/dev/null
    wait $emulated; wait $server
    "$python" -c "import json; [print('round {round}: {replies} replies, accuracy {accuracy:.4f}'.format(**json.loads(line)))
        for line in open('$work/run/rounds.jsonl')]"
    cat "$work/arm64.log"
    grep -q "3 rounds trained" "$work/arm64.log"
    echo "the arm64 client's peak of resident memory, with the emulator's own: $last"
}

try_streams() {
    local model=${MODEL:-$work/run/model.safetensors}
    echo; echo "== streams of a model"
    "$python" benchmarks/stream_digests.py encode "$model" "$work/streams" | tee "$work/encoded.txt"
    carry benchmarks/stream_digests.py "$model" "$work/streams"
    "${there[@]}" /tmp/stream_digests.py encode "/tmp/${model##*/}" /tmp/own | diff "$work/encoded.txt" -
    echo "arm64: the same"
    "$python" benchmarks/stream_digests.py decode "$root/tmp/own" | tee "$work/decoded.txt"
    "${there[@]}" /tmp/stream_digests.py decode /tmp/streams | diff "$work/decoded.txt" -
    echo "arm64: the same"
}

image=$given
emulate
size "root file system without packages" "$root/usr"
"${there[@]}" -c "import platform, sys; print(platform.machine(), 'Python', sys.version.split()[0])"
echo "qemu: $QEMU_CPU"
for part in "${parts[@]}"; do "try_$part"; done

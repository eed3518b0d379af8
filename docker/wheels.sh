#!/bin/sh
# Wheels for an image, which may be for another kind of machine than this one:
#
#   wheels.sh download ARCH TORCH         of torch for CPUs, and of all that requirements*.txt name, into WHEELS
#   wheels.sh build ARCH                  of fedsz, from this folder, into WHEELS
#   wheels.sh install ARCH FOLDER WHAT... from WHEELS into a folder of packages
#
# WHEELS is a variable of the environment, and /wheels by default.
set -eu

does=$1 arch=$2 wheelhouse=${WHEELS:-/wheels}
shift 2
# Of torch alone: an index that is asked for everything could give out any package.
torch_index=${PIP_EXTRA_INDEX_URL:-}
unset PIP_EXTRA_INDEX_URL
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "no wheels for $arch; have amd64, arm64" >&2; exit 2 ;;
esac
abi=cp311
suffix=.cpython-311-$machine-linux-gnu.so
for glibc in linux manylinux2014 manylinux_2_17 manylinux_2_24 manylinux_2_26 manylinux_2_27 manylinux_2_28 manylinux_2_34; do
    platforms="${platforms:-} --platform ${glibc}_$machine"
done
wheels="--no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi $abi --abi abi3 --abi none $platforms"

case $does in
    download) # What the images do not have would be missed only when a container imports torch.
        PIP_EXTRA_INDEX_URL=$torch_index pip download --no-cache-dir $wheels --dest "$wheelhouse" "$1"
        ! python3 -m zipfile -l "$wheelhouse"/torch-*.whl | grep libtorch_cuda > /dev/null || {
            echo "$1 is a build for CUDA, which the images do not have: name an index of CPU builds by PIP_EXTRA_INDEX_URL" >&2
            exit 1
        }
        cat docker/requirements*.txt > /tmp/all.txt
        pip download --no-cache-dir $wheels --dest "$wheelhouse" -r /tmp/all.txt ;;
    build) # What builds is of this machine, so it comes before the variables that name another one.
        pip install --no-cache-dir "scikit-build-core>=0.11" "nanobind>=3.0" cmake ninja
        [ "$machine" = "$(uname -m)" ] || {
            (cd /tmp && apt-get download "libpython3.11-dev:$arch")
            dpkg-deb --fsys-tarfile /tmp/libpython3.11-dev_*.deb | tar -x -C / --wildcards "./usr/include/*"
            export _PYTHON_HOST_PLATFORM=linux-$machine SETUPTOOLS_EXT_SUFFIX=$suffix
            export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine
                -DCMAKE_CXX_COMPILER=$machine-linux-gnu-g++"
        }
        pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$wheelhouse" . ;;
    install) folder=$1
        shift
        pip install $wheels --no-index --find-links "$wheelhouse" --target "$folder" "$@"
        # These come with symbols. What auditwheel has patched, such as OpenBLAS, cannot be loaded once it is stripped.
        find "$folder/cryptography" "$folder/backports" -name "*.so" \
            -exec "$machine-linux-gnu-strip" --strip-unneeded {} + ;;
esac

export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
sed 's/ main$/ non-free/' "$1"/etc/apt/sources.list > "$1"/etc/apt/sources.list.d/nvcc.list
cd "$1"/tmp
if apt-get update && apt-get download nvidia-cuda-toolkit
then
  dpkg-deb --extract ./nvidia-cuda-toolkit_*.deb cuda
  for name in usr/bin/fatbinary usr/bin/nvlink usr/bin/ptxas usr/lib/nvidia-cuda-toolkit/bin/cicc
  do test ! -f cuda/$name || install -D cuda/$name "$1"/$name; done
else echo "no native passes of nvcc"; fi
rm -rf ./nvidia-cuda-toolkit_*.deb cuda "$1"/etc/apt/sources.list.d/nvcc.list

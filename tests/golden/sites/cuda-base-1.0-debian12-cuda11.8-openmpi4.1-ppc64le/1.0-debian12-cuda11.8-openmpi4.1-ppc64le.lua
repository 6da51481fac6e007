-- cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le as an Lmod module: cuda-base-exec PROGRAM runs a program in the image.
help("hpc-base with CUDA, and with cuDNN and NCCL where they exist" .. [[

]] .. "  cuda-base-exec PROGRAM [ARGUMENT...]   runs a program in the image" .. [[

]] .. "  cuda-base-check   runs the image's own checks" .. [[

  $BUILD_IMAGES_IMAGE   is the image, as in: srun apptainer exec $BUILD_IMAGES_IMAGE PROGRAM
]] .. "It needs ppc64le, Linux 3.10.0 or newer, NVIDIA driver 450.80.02 or newer, Open MPI 4.1.4, PMIx 4.2.")
whatis("Name: cuda-base")
whatis("Version: 1.0-debian12-cuda11.8-openmpi4.1-ppc64le")
whatis("Description: hpc-base with CUDA, and with cuDNN and NCCL where they exist")
whatis("URL: docker://quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1")

conflict("cuda-base")
local image = "/opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif"
if mode() == "load" then
    local machine = capture("uname -m"):gsub("%s+", "")
    if machine ~= "ppc64le" then
        LmodError("this node is " .. machine .. ", but the image is for ppc64le")
    end
    if not isFile(image) then
        LmodError("no image " .. image .. "; in the folder of images, run: build-images pull quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1 --format sif")
    end
end
append_path("PATH", "/opt/build-images/tools/bin") -- Apptainer, where an administrator ran `build-images setup host`
setenv("BUILD_IMAGES_IMAGE", image)
setenv("APPTAINER_NV", "1")
set_shell_function("cuda-base-exec",
    "apptainer exec --nv /opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif \"$@\"",
    "apptainer exec --nv /opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif $*")
set_shell_function("cuda-base-check",
    "apptainer exec --nv /opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif /opt/build-images/run-checks \"$@\"",
    "apptainer exec --nv /opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif /opt/build-images/run-checks $*")

-- hpc-base-1.0-debian13-openmpi5.0-x86_64 as an Lmod module: hpc-base-exec PROGRAM runs a program in the image.
help("Compilers, CMake, Python 3, UCX, rdma-core and an MPI" .. [[

]] .. "  hpc-base-exec PROGRAM [ARGUMENT...]   runs a program in the image" .. [[

]] .. "  hpc-base-check   runs the image's own checks" .. [[

  $BUILD_IMAGES_IMAGE   is the image, as in: srun apptainer exec $BUILD_IMAGES_IMAGE PROGRAM
]] .. "It needs x86_64, Linux 3.2.0 or newer, Open MPI 5.0.7, PMIx 5.0.")
whatis("Name: hpc-base")
whatis("Version: 1.0-debian13-openmpi5.0-x86_64")
whatis("Description: Compilers, CMake, Python 3, UCX, rdma-core and an MPI")
whatis("URL: docker://quay.io/site/hpc-base:1.0-debian13-openmpi5.0")

conflict("hpc-base")
local image = "/opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif"
if mode() == "load" then
    local machine = capture("uname -m"):gsub("%s+", "")
    if machine ~= "x86_64" then
        LmodError("this node is " .. machine .. ", but the image is for x86_64")
    end
    if not isFile(image) then
        LmodError("no image " .. image .. "; in the folder of images, run: build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format sif")
    end
end
append_path("PATH", "/opt/build-images/tools/bin") -- Apptainer, where an administrator ran `build-images setup host`
setenv("BUILD_IMAGES_IMAGE", image)
set_shell_function("hpc-base-exec",
    "apptainer exec /opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif \"$@\"",
    "apptainer exec /opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif $*")
set_shell_function("hpc-base-check",
    "apptainer exec /opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif /opt/build-images/run-checks \"$@\"",
    "apptainer exec /opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif /opt/build-images/run-checks $*")

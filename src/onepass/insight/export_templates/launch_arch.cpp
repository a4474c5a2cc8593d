static CUresult launch_${arch}(const CUfunction* f${tensor_parameters}, CUdeviceptr scratch${size_parameters}, CUstream stream) {
${scratch}${used}${body}  return CUDA_SUCCESS;
}

static size_t scratch_${arch}(${sizes_alone}) {
${unused}  return (size_t)(${bytes});
}


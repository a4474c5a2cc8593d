// Launcher of `${name}`: kernels that onepass generated, for ${archs}. Needs the CUDA driver API alone.
//
// Tensors are device addresses, contiguous, each at a multiple of 16 bytes:
${tensors}${sizes}#pragma once
#include <cuda.h>
#include <stddef.h>

struct ${name}_kernels;  // loaded for one context

// Loads the machine code for the current context's device. CUDA_ERROR_NO_BINARY_FOR_GPU: none of these runs on it.
CUresult ${name}_load(${name}_kernels** kernels);
void ${name}_unload(${name}_kernels* kernels);

// Bytes of device memory that a launch needs between its kernels; 0: none, `scratch` may be 0.
size_t ${name}_scratch_bytes(${sizes_alone});

// Puts the kernels on a stream. CUDA_ERROR_MISALIGNED_ADDRESS: a tensor does not start at 16 bytes.
CUresult ${name}_launch(const ${name}_kernels* kernels${tensor_parameters}, CUdeviceptr scratch${size_parameters}, CUstream stream);

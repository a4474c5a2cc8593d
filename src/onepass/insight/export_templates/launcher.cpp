#include "${name}.h"

#include "cubins.h"

struct ${name}_kernels {
  int target;
  CUmodule modules[${most}];
  CUfunction functions[${most}];
};

struct target {
  int major, minor, count;
  const unsigned char* code[${most}];
};

static const target targets[] = {
${targets}
};

static const char* const names[][${most}] = {${names}};
static const int shared_bytes[][${most}] = {${shared}};

${parts}CUresult ${name}_load(${name}_kernels** kernels) {
  CUdevice device;
  int major = 0, minor = 0, best = -1;
  CUresult code = cuCtxGetDevice(&device);
  if (!code) code = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (!code) code = cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (code) return code;
  // Machine code runs on its own minor version and later ones of the same major version.
  for (int i = 0; i < ${count}; ++i)
    if (targets[i].major == major && targets[i].minor <= minor && (best < 0 || targets[i].minor > targets[best].minor))
      best = i;
  if (best < 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  ${name}_kernels* made = new ${name}_kernels();
  made->target = best;
  for (int i = 0; i < targets[best].count; ++i) {
    code = cuModuleLoadData(&made->modules[i], targets[best].code[i]);
    if (!code) code = cuModuleGetFunction(&made->functions[i], made->modules[i], names[best][i]);
    if (!code && shared_bytes[best][i] > 49152)
      code = cuFuncSetAttribute(made->functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes[best][i]);
    if (code) {
      ${name}_unload(made);
      return code;
    }
  }
  *kernels = made;
  return CUDA_SUCCESS;
}

void ${name}_unload(${name}_kernels* kernels) {
  for (CUmodule module : kernels->modules)
    if (module) cuModuleUnload(module);
  delete kernels;
}

size_t ${name}_scratch_bytes(${sizes_alone}) {
  size_t most = 0;
${scratches}
  return most;
}

CUresult ${name}_launch(const ${name}_kernels* kernels${tensor_parameters}, CUdeviceptr scratch${size_parameters}, CUstream stream) {
  switch (kernels->target) {
${launches}
  }
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

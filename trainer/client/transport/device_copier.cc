#include "trainer/client/transport/device_copier.h"

#include <cstring>
#include <string>

#include <dlfcn.h>

namespace psd {
namespace {

// Constants of the CUDA Runtime API, the same in all its versions.
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kMemcpyDefault = 4;
constexpr unsigned kIpcLazyEnablePeerAccess = 1;
constexpr int kSuccess = 0;
constexpr int kNotReady = 600;

template <class Function>
bool find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace

/// The functions in use, as cuda_runtime_api.h declares them except for the types of handles and errors.
struct DeviceCopier::Runtime {
  struct IpcMemHandle {  // cudaIpcMemHandle_t, passed by value
    char reserved[64];
  };

  int (*getDevice)(int*);
  int (*setDevice)(int);
  int (*getLastError)();
  const char* (*getErrorString)(int);
  int (*streamCreate)(void**, unsigned);
  int (*streamSynchronize)(void*);
  int (*streamQuery)(void*);
  int (*streamDestroy)(void*);
  int (*memcpyAsync)(void*, const void*, size_t, int, void*);
  int (*ipcOpen)(void**, IpcMemHandle, unsigned);
  int (*ipcClose)(void*);
  int (*allocate)(void**, size_t);
  int (*release)(void*);

  bool findAll() {
    return find(getDevice, "cudaGetDevice") && find(setDevice, "cudaSetDevice") &&
           find(getLastError, "cudaGetLastError") && find(getErrorString, "cudaGetErrorString") &&
           find(streamCreate, "cudaStreamCreateWithFlags") &&
           find(streamSynchronize, "cudaStreamSynchronize") && find(streamDestroy, "cudaStreamDestroy") &&
           find(streamQuery, "cudaStreamQuery") && find(memcpyAsync, "cudaMemcpyAsync") &&
           find(ipcOpen, "cudaIpcOpenMemHandle") && find(ipcClose, "cudaIpcCloseMemHandle") &&
           find(allocate, "cudaMalloc") && find(release, "cudaFree");
  }
};

/// Makes a device CUDA's current one of this thread, and restores the previous one.
class DeviceCopier::Current {
 public:
  explicit Current(const DeviceCopier& copier) : runtime_(*copier.runtime_) {
    runtime_.getDevice(&before_);
    status_ = copier.check("cudaSetDevice", runtime_.setDevice(copier.device_));
  }
  ~Current() {
    if (status_.ok()) runtime_.setDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  const Status& status() const { return status_; }

 private:
  const Runtime& runtime_;
  int before_ = 0;
  Status status_;
};

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::make(int device) {
  auto runtime = std::make_unique<Runtime>();
  if (!runtime->findAll()) return Error{ErrorCode::internal, "this program has no CUDA runtime"};
  std::unique_ptr<DeviceCopier> copier(new DeviceCopier(device, std::move(runtime)));
  const Current current(*copier);
  PSD_RETURN_IF_ERROR(current.status());
  PSD_RETURN_IF_ERROR(copier->check("cudaStreamCreate",
                                    copier->runtime_->streamCreate(&copier->stream_, kStreamNonBlocking)));
  return copier;
}

DeviceCopier::DeviceCopier(int device, std::unique_ptr<Runtime> runtime)
    : device_(device), runtime_(std::move(runtime)) {}

DeviceCopier::~DeviceCopier() {
  if (stream_ == nullptr) return;
  const Current current(*this);
  runtime_->streamDestroy(stream_);
}

Status DeviceCopier::check(const char* call, int error) const {
  if (error == kSuccess) return {};
  runtime_->getLastError();  // clears the error for later callers
  return {ErrorCode::internal,
          "cuda:" + std::to_string(device_) + ": " + call + ": " + runtime_->getErrorString(error)};
}

Result<std::unique_ptr<DeviceCopier::Mapping>> DeviceCopier::map(std::span<const std::byte> handle) {
  Runtime::IpcMemHandle bytes;
  if (handle.size() != sizeof bytes) {
    return Error{ErrorCode::protocolMismatch, "a handle of device memory has " +
                                                  std::to_string(sizeof bytes) + " bytes, not " +
                                                  std::to_string(handle.size())};
  }
  std::memcpy(&bytes, handle.data(), sizeof bytes);
  const Current current(*this);
  PSD_RETURN_IF_ERROR(current.status());
  void* data = nullptr;
  PSD_RETURN_IF_ERROR(
      check("cudaIpcOpenMemHandle", runtime_->ipcOpen(&data, bytes, kIpcLazyEnablePeerAccess)));
  return std::make_unique<Mapping>(*this, static_cast<std::byte*>(data));
}

DeviceCopier::Mapping::~Mapping() {
  const Current current(copier_);
  if (copier_.runtime_->ipcClose(data_) != kSuccess) copier_.runtime_->getLastError();
}

Result<std::unique_ptr<DeviceCopier::Array>> DeviceCopier::allocate(std::span<const float> values) {
  const Current current(*this);
  PSD_RETURN_IF_ERROR(current.status());
  void* data = nullptr;
  PSD_RETURN_IF_ERROR(check("cudaMalloc", runtime_->allocate(&data, values.size_bytes())));
  auto array = std::make_unique<Array>(*this, static_cast<float*>(data), values.size());
  PSD_RETURN_IF_ERROR(copy(data, values.data(), values.size_bytes()));
  return array;
}

DeviceCopier::Array::~Array() {
  const Current current(copier_);
  if (copier_.runtime_->release(data_) != kSuccess) copier_.runtime_->getLastError();
}

Status DeviceCopier::copy(void* to, const void* from, size_t bytes) {
  PSD_RETURN_IF_ERROR(begin(to, from, bytes));
  return synchronize();
}

Status DeviceCopier::begin(void* to, const void* from, size_t bytes) {
  const Current current(*this);
  PSD_RETURN_IF_ERROR(current.status());
  return check("cudaMemcpyAsync", runtime_->memcpyAsync(to, from, bytes, kMemcpyDefault, stream_));
}

Status DeviceCopier::synchronize() {
  const Current current(*this);
  PSD_RETURN_IF_ERROR(current.status());
  return check("cudaStreamSynchronize", runtime_->streamSynchronize(stream_));
}

Result<bool> DeviceCopier::idle() {
  const Current current(*this);
  PSD_RETURN_IF_ERROR(current.status());
  const int state = runtime_->streamQuery(stream_);
  const Status status = check("cudaStreamQuery", state);
  if (state == kNotReady) return false;
  PSD_RETURN_IF_ERROR(status);
  return true;
}

}  // namespace psd

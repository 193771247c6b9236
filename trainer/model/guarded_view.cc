#include "trainer/model/guarded_view.h"

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include "common/text/text.h"

namespace psd {
namespace {

using c10::impl::cow::COWDeleterContext;

/// Replaces guarded memory: a copy that can be written, and a copy of the original values.
struct Copies {
  at::DataPtr written, original;
  std::string place;
};

void deleteCopies(void* copies) { delete static_cast<Copies*>(copies); }

std::string placeOfScript() {
  const std::vector<torch::jit::StackEntry> calls = torch::jit::currentCallstack();
  if (calls.empty()) return "";
  torch::jit::SourceRange range = calls.back().range;
  if (const auto original = range.findSourceRangeThatGenerated()) range = *original;
  const auto where = range.file_line_col();
  if (!where) return "";
  return oneLine(std::get<0>(*where), 200) + ":" + std::to_string(std::get<1>(*where));
}

/// Makes the copies. LibTorch calls allocate(), then copy_data() with its result. Immutable, so thread-safe;
/// lives as long as the process.
class CopyingAllocator final : public c10::Allocator {
 public:
  explicit CopyingAllocator(c10::Allocator& device) : device_(device) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto copies =
        std::make_unique<Copies>(Copies{device_.allocate(bytes), device_.allocate(bytes), placeOfScript()});
    void* const written = copies->written.mutable_get();
    const c10::Device device = copies->written.device();
    newest() = copies.get();
    return {written, copies.release(), &deleteCopies, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    device_.copy_data(newest()->original.mutable_get(), from, bytes);
    device_.copy_data(to, newest()->original.get(), bytes);  // not from `from`, which may have changed since
  }

 private:
  /// The result of this thread's last allocate().
  static Copies*& newest() {
    thread_local Copies* newest = nullptr;
    return newest;
  }

  c10::Allocator& device_;
};

c10::Allocator* copyingAllocator(const at::Device& device) {
  static CopyingAllocator cpu(*c10::GetAllocator(c10::DeviceType::CPU));
  if (device.is_cpu()) return &cpu;
  static CopyingAllocator cuda(*c10::GetAllocator(c10::DeviceType::CUDA));
  return &cuda;
}

/// Shared by all views, with a reference that is never released: the owner of the last reference would write
/// to the memory in place.
COWDeleterContext* sharedContext() {
  static auto* const context = new COWDeleterContext({nullptr, [](void*) {}});
  context->increment_refcount();
  return context;
}

bool sameBits(const Copies& copies, int64_t elements) {
  const auto bits = [&](const at::DataPtr& data) {
    return at::from_blob(const_cast<void*>(data.get()), {elements},
                         at::TensorOptions(at::kInt).device(data.device()));
  };
  return at::equal(bits(copies.written), bits(copies.original));
}

/// Null if writable memory was never requested or the tensor is not guarded.
const Copies* copiesOf(const at::Tensor& tensor) {
  const at::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &deleteCopies ? static_cast<const Copies*>(data.get_context()) : nullptr;
}

}  // namespace

at::Tensor guardedView(const float* values, at::IntArrayRef shape, const at::Device& device) {
  const auto bytes = static_cast<int64_t>(c10::multiply_integers(shape) * sizeof(float));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
      c10::DataPtr(const_cast<float*>(values), sharedContext(), c10::impl::cow::cow_deleter, device),
      copyingAllocator(device), /*resizable=*/false);
  at::Tensor view = at::empty({0}, at::TensorOptions(at::kFloat).device(device));
  view.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  view.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return view;
}

bool isGuarded(const at::Tensor& tensor) {
  return c10::impl::cow::is_cow_data_ptr(tensor.storage().data_ptr()) || copiesOf(tensor) != nullptr;
}

bool wasWritten(const at::Tensor& tensor) {
  if (!isGuarded(tensor)) return true;
  const Copies* const copies = copiesOf(tensor);
  return copies != nullptr &&
         !sameBits(*copies, static_cast<int64_t>(tensor.storage().nbytes() / sizeof(float)));
}

std::string placeOfWrite(const at::Tensor& tensor) {
  const Copies* const copies = copiesOf(tensor);
  return copies == nullptr ? std::string() : copies->place;
}

}  // namespace psd

#include "server/replica/image_stream.h"

#include <algorithm>

namespace psd {
namespace {

Error onlyWritten(const std::string& path) {
  return {ErrorCode::internal, "'" + path + "' is sent to another daemon and cannot be read here"};
}

class Sender final : public WritableFile {
 public:
  Sender(ImageStream& stream, std::string path) : stream_(stream), path_(std::move(path)) {}

  Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t some = std::min<size_t>(bytes.size(), stream_.partBytes() - gathered_.size());
      gathered_.insert(gathered_.end(), bytes.begin(), bytes.begin() + some);
      bytes = bytes.subspan(some);
      if (gathered_.size() >= stream_.partBytes()) PSD_RETURN_IF_ERROR(flush());
    }
    return {};
  }
  Status sync() override { return flush(); }
  Status close() override { return flush(); }
  Status inPlace() const override { return {}; }

 private:
  Status flush() {
    if (gathered_.empty()) return {};
    return stream_.put({path_, {}, std::exchange(gathered_, {})});
  }

  ImageStream& stream_;
  const std::string path_;
  std::vector<std::byte> gathered_;
};

}  // namespace

Status ImageStream::put(ImagePart part) {
  std::unique_lock hold(mutex_);
  taken_.wait(hold, [this] { return ended_ || parts_.size() < kPartsMax; });
  if (ended_) return {ErrorCode::unavailable, "the daemon that receives the copy is gone"};
  parts_.push_back(std::move(part));
  Reader reader = takeReader();
  hold.unlock();
  wake(kj::mv(reader));
  return {};
}

kj::Promise<void> ImageStream::whenFilled() {
  const std::lock_guard hold(mutex_);
  if (ended_ || finished_ || !parts_.empty()) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  reader_ = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

std::optional<ImagePart> ImageStream::take() {
  const std::lock_guard hold(mutex_);
  if (parts_.empty()) return {};
  ImagePart part = std::move(parts_.front());
  parts_.pop_front();
  taken_.notify_one();
  return part;
}

void ImageStream::finish() {
  std::unique_lock hold(mutex_);
  finished_ = true;
  Reader reader = takeReader();
  hold.unlock();
  wake(kj::mv(reader));
}

void ImageStream::end() {
  std::unique_lock hold(mutex_);
  ended_ = true;
  parts_.clear();
  taken_.notify_all();
  Reader reader = takeReader();
  hold.unlock();
  wake(kj::mv(reader));
}

Result<std::unique_ptr<WritableFile>> ImageStream::create(const std::string& path) {
  return std::unique_ptr<WritableFile>(std::make_unique<Sender>(*this, path));
}

Status ImageStream::rename(const std::string& from, const std::string& to) { return put({from, to, {}}); }

Result<std::unique_ptr<ReadableFile>> ImageStream::open(const std::string& path) { return onlyWritten(path); }

Status ImageStream::truncate(const std::string& path, uint64_t) { return onlyWritten(path); }

Result<std::unique_ptr<FileLock>> ImageStream::lock(const std::string& path) { return onlyWritten(path); }

}  // namespace psd

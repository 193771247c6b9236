#include "common/wire/buffers.h"

#include <algorithm>
#include <utility>

#include "common/wire/convert.h"

namespace psd::wire {
namespace {

constexpr int kReplacedMax = 20;  // restarts because newer buffers have replaced those that were read

/// Pulls one file. Belongs to one event loop.
class BuffersPull {
 public:
  explicit BuffersPull(schema::Reader::Client reader) : reader_(kj::mv(reader)) {}

  kj::Promise<Status> run() {
    auto request = reader_.buffersRequest();
    request.setSet(set_);
    request.setOffset(file_.size());
    return request.send().then(
        [this](capnp::Response<schema::BuffersResult> answer) -> kj::Promise<Status> {
          if (answer.isError()) return restart(readError(answer.getError()));
          const auto slice = answer.getSlice();
          const auto bytes = bytesIn(slice.getBytes());
          const uint64_t left = slice.getSize() - std::min<uint64_t>(slice.getSize(), file_.size());
          if (bytes.size() > left || (bytes.empty() && left > 0)) {
            return Status(ErrorCode::protocolMismatch, "a slice of the model's buffers has the wrong length");
          }
          set_ = slice.getSet();
          file_.insert(file_.end(), bytes.begin(), bytes.end());
          return bytes.size() < left ? run() : kj::Promise<Status>(Status());
        },
        [](kj::Exception&& exception) -> kj::Promise<Status> {
          if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) return Status();
          kj::throwFatalException(kj::mv(exception));
        });
  }
  std::vector<std::byte> take() { return std::move(file_); }

 private:
  kj::Promise<Status> restart(const Error& error) {
    const bool replaced = error.code == ErrorCode::notReady && set_ != 0;
    if (!replaced || ++replaced_ > kReplacedMax) return Status(error);
    set_ = 0;
    file_.clear();
    return run();
  }

  schema::Reader::Client reader_;
  std::vector<std::byte> file_;
  uint64_t set_ = 0;  // of file_
  int replaced_ = 0;
};

/// Sends one file. Belongs to one event loop.
class BuffersSender {
 public:
  BuffersSender(schema::Trainer::Client trainer, std::shared_ptr<const std::vector<std::byte>> file,
                uint64_t sliceBytes)
      : trainer_(kj::mv(trainer)), file_(std::move(file)), sliceBytes_(sliceBytes) {}

  kj::Promise<Status> run() {
    const uint64_t count = std::min<uint64_t>(sliceBytes_, file_->size() - sent_);
    auto request = trainer_.setBuffersRequest();
    request.setSize(file_->size());
    request.setOffset(sent_);
    request.setBytes(kj::arrayPtr(reinterpret_cast<const kj::byte*>(file_->data() + sent_), count));
    return request.send().then(
        [this, count](capnp::Response<schema::Trainer::SetBuffersResults> answer) -> kj::Promise<Status> {
          sent_ += count;
          const Status status = readStatus(answer.getStatus());
          return status.ok() && sent_ < file_->size() ? run() : kj::Promise<Status>(status);
        },
        [](kj::Exception&& exception) -> kj::Promise<Status> {
          if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
            return Status(ErrorCode::protocolMismatch, "the daemon is too old for a model's buffers");
          }
          kj::throwFatalException(kj::mv(exception));
        });
  }

 private:
  schema::Trainer::Client trainer_;
  const std::shared_ptr<const std::vector<std::byte>> file_;
  const uint64_t sliceBytes_;
  uint64_t sent_ = 0;
};

}  // namespace

kj::Promise<Result<std::vector<std::byte>>> pullBuffers(schema::Reader::Client reader) {
  auto pull = kj::heap<BuffersPull>(kj::mv(reader));
  auto pulled = pull->run();
  return pulled.then([pull = kj::mv(pull)](const Status& status) mutable -> Result<std::vector<std::byte>> {
    if (!status.ok()) return status.error();
    return pull->take();
  });
}

kj::Promise<Status> sendBuffers(schema::Trainer::Client trainer,
                                std::shared_ptr<const std::vector<std::byte>> file, uint64_t sliceBytes) {
  auto sender = kj::heap<BuffersSender>(kj::mv(trainer), std::move(file), sliceBytes);
  auto sent = sender->run();
  return sent.attach(kj::mv(sender));
}

}  // namespace psd::wire

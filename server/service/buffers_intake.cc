#include "server/service/buffers_intake.h"

#include <utility>

#include <spdlog/fmt/fmt.h>

namespace psd {

Status BuffersIntake::check(uint64_t size, uint64_t offset, uint64_t bytes) const {
  const auto refuse = [](ErrorCode code, std::string why) { return Status(code, std::move(why)); };
  if (trainer_.bridges || trainer_.rank != Rank{0}) {
    const std::string who = trainer_.bridges ? "a bridge" : fmt::format("rank {}", trainer_.rank.value);
    return refuse(ErrorCode::invalidArgument,
                  "the model's buffers are those of the trainer with rank 0, and this is " + who);
  }
  if (model_->store->model().partition.index != 0) {
    return refuse(ErrorCode::invalidArgument, "the first of several daemons has the model's buffers");
  }
  if (replacing_) return refuse(ErrorCode::overloaded, "the previous buffers are not answered yet");
  if (const uint64_t most = loop_.config().limits.bufferBytes; size > most) {
    return refuse(
        ErrorCode::overloaded,
        fmt::format("the model's buffers have {} bytes, and limits.buffer_bytes is {}", size, most));
  }
  const bool continues = offset == 0 || (offset == file_.size() && size == size_);
  if (!continues || bytes == 0 || bytes > size - offset) {
    return refuse(
        ErrorCode::badSlice,
        fmt::format("{} bytes at {} of {} do not continue the {} of the model's buffers before them", bytes,
                    offset, size, file_.size()));
  }
  return {};
}

kj::Promise<Status> BuffersIntake::take(uint64_t size, uint64_t offset, std::span<const std::byte> bytes) {
  if (Status fits = check(size, offset, bytes.size()); !fits.ok()) return fits;
  if (offset == 0) file_.clear();
  size_ = size;
  file_.insert(file_.end(), bytes.begin(), bytes.end());
  if (file_.size() < size_) return Status();
  auto buffers = BufferSet::parse(std::exchange(file_, {}));
  if (!buffers.ok()) return buffers.status();
  if (Status named = (*buffers)->checkNames(model_->store->model()); !named.ok()) return named;
  replacing_ = true;
  return model_->store->buffers()
      .replace(*std::move(buffers))
      .then([] { return Status(); })
      .attach(kj::defer([this] { replacing_ = false; }));
}

}  // namespace psd

#include "trainer/client/publishing_calls.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/wire/convert.h"
#include "common/wire/published_version.h"
#include "trainer/client/transport/sanitized.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd {
namespace {

constexpr uint64_t kDeclarationBytes = 1u << 20;  // of a message with parts
constexpr uint32_t kWritesInFlight = 8;

/// The daemon's error, which names the daemon.
Error publishingError(const DaemonConnection& connection, const Error& error) {
  return {error.code, connection.server() + ": " + sanitized(error).message};
}

Error wrongAnswer(const DaemonConnection& connection, const std::string& what) {
  return {ErrorCode::protocolMismatch, connection.server() + ": the daemon " + what};
}

/// The bytes of several parts, one after another.
class PartStream {
 public:
  explicit PartStream(std::vector<std::span<const std::byte>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      begins_.push_back(size_);
      size_ += part.size();
    }
  }
  uint64_t size() const { return size_; }
  void copy(uint64_t from, std::byte* to, uint64_t count) const {
    auto at = static_cast<size_t>(std::ranges::upper_bound(begins_, from) - begins_.begin()) - 1;
    for (; count > 0; at++) {
      const std::span<const std::byte> rest = parts_[at].subspan(from - begins_[at]);
      const uint64_t piece = std::min<uint64_t>(count, rest.size());
      if (piece > 0) std::memcpy(to, rest.data(), piece);
      from += piece;
      to += piece;
      count -= piece;
    }
  }

 private:
  std::vector<std::span<const std::byte>> parts_;
  std::vector<uint64_t> begins_;
  uint64_t size_ = 0;
};

/// A step on its way over one connection. Belongs to the connection's event loop.
class StepTransfer {
 public:
  using Answer = Result<VersionInfo>;

  StepTransfer(DaemonConnection& connection, schema::Publishing::Client publishing, const StepToPublish& step)
      : connection_(connection), publishing_(kj::mv(publishing)), step_(step) {}

  kj::Promise<Answer> run() {
    return declare(0).then([this](Status declared) -> kj::Promise<Answer> {
      if (!declared.ok()) return Answer(declared.error());
      return begin();
    });
  }

 private:
  static uint64_t wireBytes(const TensorPart& part) {
    constexpr uint64_t kFixedBytes = 80;
    return kFixedBytes + part.name.size() + part.dtype.size() + 3 * sizeof(uint64_t) * part.shape.size();
  }
  static void write(const TensorPart& part, uint32_t checksum, schema::VersionPart::Builder out) {
    out.setName(capnp::Text::Reader(part.name.c_str(), part.name.size()));
    out.setDtype(capnp::Text::Reader(part.dtype.c_str(), part.dtype.size()));
    out.setShape(kj::arrayPtr(part.shape.data(), part.shape.size()));
    out.setOffset(kj::arrayPtr(part.offset.data(), part.offset.size()));
    out.setExtent(kj::arrayPtr(part.extent.data(), part.extent.size()));
    out.setChecksum(checksum);
  }

  /// Declares the parts from `first` on, in messages of limited size.
  kj::Promise<Status> declare(size_t first) {
    uint64_t bytes = 0;
    size_t end = first;
    while (end < step_.parts.size() && (end == first || bytes < kDeclarationBytes)) {
      bytes += wireBytes(step_.parts[end++]);
    }
    auto request = publishing_.declareRequest();
    request.setFirst(first == 0);
    auto list = request.initParts(static_cast<kj::uint>(end - first));
    for (kj::uint i = 0; i < list.size(); i++)
      write(step_.parts[first + i], step_.checksums[first + i], list[i]);
    return request.send().then(
        [this, end](capnp::Response<schema::Publishing::DeclareResults> answer) -> kj::Promise<Status> {
          const Status status = wire::readStatus(answer.getStatus());
          if (!status.ok()) return Status(publishingError(connection_, status.error()));
          return end < step_.parts.size() ? declare(end) : kj::Promise<Status>(Status());
        });
  }

  kj::Promise<Answer> begin() {
    auto request = publishing_.beginRequest();
    request.setRank(step_.place.rank);
    request.setWorldSize(step_.place.worldSize);
    request.setIncarnation(step_.incarnation);
    request.setStep(step_.step);
    return request.send().then(
        [this](capnp::Response<schema::BeginVersionResult> answer) -> kj::Promise<Answer> {
          if (answer.isError())
            return Answer(publishingError(connection_, wire::readError(answer.getError())));
          if (answer.isPublished()) return Answer(wire::readVersion(answer.getPublished()));
          return send(answer.getUpload());
        });
  }

  kj::Promise<Answer> send(schema::BeginVersionResult::Upload::Reader in) {
    std::vector<std::span<const std::byte>> parts;
    for (const uint32_t index : in.getSends()) {
      if (index >= step_.parts.size() || parts.size() == step_.parts.size()) {
        return Answer(wrongAnswer(connection_, "asks for a part that there is not"));
      }
      parts.push_back(step_.parts[index].bytes);
    }
    const PartStream& stream = stream_.emplace(std::move(parts));
    if (in.getArrived() > stream.size() || in.getSliceBytes() == 0) {
      return Answer(wrongAnswer(connection_, "has more bytes than were sent"));
    }
    transfer_ = in.getTransfer();
    const uint64_t begin = in.getArrived(), slice = std::min(step_.sliceBytes, in.getSliceBytes());
    return sendInWindow((stream.size() - begin + slice - 1) / slice, kWritesInFlight,
                        [this, begin, slice](size_t i) { return writeSlice(begin + i * slice, slice); })
        .then([this](Status sent) -> kj::Promise<Answer> {
          if (!sent.ok()) return Answer(sent.error());
          return finish();
        });
  }

  kj::Promise<Status> writeSlice(uint64_t offset, uint64_t most) {
    const uint64_t count = std::min(most, stream_->size() - offset);
    constexpr uint64_t kEnvelopeWords = 64;
    auto request = KJ_ASSERT_NONNULL(transfer_).writeRequest(
        capnp::MessageSize{kEnvelopeWords + count / sizeof(capnp::word), 0});
    request.setOffset(offset);
    auto bytes = request.initBytes(static_cast<kj::uint>(count));
    stream_->copy(offset, reinterpret_cast<std::byte*>(bytes.begin()), count);
    return request.send().then([this](capnp::Response<schema::VersionUpload::WriteResults> answer) -> Status {
      const Status written = wire::readStatus(answer.getStatus());
      return written.ok() ? written : Status(publishingError(connection_, written.error()));
    });
  }

  kj::Promise<Answer> finish() {
    return KJ_ASSERT_NONNULL(transfer_).finishRequest().send().then(
        [this](capnp::Response<schema::VersionResult> answer) -> Answer {
          const auto version = wire::readVersion(answer);
          return version.ok() ? version : Answer(publishingError(connection_, version.error()));
        });
  }

  DaemonConnection& connection_;
  schema::Publishing::Client publishing_;
  const StepToPublish& step_;
  std::optional<PartStream> stream_;
  kj::Maybe<schema::VersionUpload::Client> transfer_;
};

}  // namespace

kj::Promise<Result<VersionInfo>> publishStep(DaemonConnection& connection, const StepToPublish& step) {
  using Answer = Result<VersionInfo>;
  return connection.call([&connection, &step]() -> kj::Promise<Answer> {
    KJ_IF_MAYBE (publishing, connection.publishing()) {
      auto transfer = kj::heap<StepTransfer>(connection, *publishing, step);
      auto answer = transfer->run();
      return answer.attach(kj::mv(transfer));
    }
    return Answer(connection.mayNotPublish());
  });
}

}  // namespace psd

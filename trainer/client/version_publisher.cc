#include "trainer/client/api/version_publisher.h"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/os/random_id.h"
#include "common/safetensors/safetensors.h"
#include "common/text/quantity.h"
#include "trainer/client/publishing_calls.h"
#include "trainer/client/reading_link.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

/// Checks what the daemon cannot: that the bytes of a part are those of its box.
Status checkBytes(const TensorPart& part) {
  const uint64_t element = safetensorsElementBytes(part.dtype);
  uint64_t bytes = element;
  bool fits = element > 0;
  for (const uint64_t extent : part.extent) fits = fits && !__builtin_mul_overflow(bytes, extent, &bytes);
  if (fits && bytes == part.bytes.size()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("tensor '{}': {} bytes are not those of a part of this size with dtype {}", part.name,
                      part.bytes.size(), part.dtype)};
}

/// The publisher of a rank over a ReadingLink.
class RemoteVersionPublisher final : public VersionPublisher {
 public:
  RemoteVersionPublisher(std::unique_ptr<ReadingLink> link, Place place)
      : link_(std::move(link)),
        place_(place),
        incarnation_(link_->options().incarnation != 0 ? link_->options().incarnation : drawId()) {}

  Result<VersionInfo> publish(uint64_t step, std::span<const TensorPart> parts,
                              std::optional<milliseconds> timeout) override;
  void interrupt() override { link_->interrupt(); }
  std::string server() const override { return link_->server(); }

 private:
  const std::unique_ptr<ReadingLink> link_;
  const Place place_;
  const uint64_t incarnation_;
  std::mutex alone_;  // held within publish()
};

Result<VersionInfo> RemoteVersionPublisher::publish(uint64_t step, std::span<const TensorPart> parts,
                                                    std::optional<milliseconds> timeout) {
  using Answer = Result<VersionInfo>;
  const std::lock_guard hold(alone_);
  ReadingLink::Until until;
  if (timeout) until = ReadingLink::Clock::now() + *timeout;
  StepToPublish work{place_, incarnation_, step, parts, {}, link_->options().chunkBytes};
  for (const TensorPart& part : parts) {
    PSD_RETURN_IF_ERROR(checkBytes(part));
    work.checksums.push_back(crc32c(part.bytes));
  }
  return link_->call<Answer>(
      until, [&](DaemonConnection& connection, kj::Timer& timer) -> kj::Promise<Answer> {
        auto published = publishStep(connection, work);
        if (!until) return published;
        auto late = timer.afterDelay(remainingUntil(*until).count() * kj::MILLISECONDS).then([&] {
          return Answer(Error{ErrorCode::deadlineExceeded,
                              fmt::format("{}: step {} was not published within {}", connection.server(),
                                          step, durationText(*timeout))});
        });
        return published.exclusiveJoin(kj::mv(late));
      });
}

}  // namespace

Result<std::unique_ptr<VersionPublisher>> VersionPublisher::connect(const ClientOptions& options,
                                                                    Place place) {
  if (place.rank >= place.worldSize) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("rank {} is not below the world size {}", place.rank, place.worldSize)};
  }
  PSD_ASSIGN_OR_RETURN(auto link, ReadingLink::make(options));
  PSD_RETURN_IF_ERROR(link->connect());
  const Status may =
      link->callOnce<Status>([](DaemonConnection& connection, kj::Timer&) -> kj::Promise<Status> {
        return connection.publishing() == nullptr ? Status(connection.mayNotPublish()) : Status();
      });
  PSD_RETURN_IF_ERROR(may);
  return std::unique_ptr<VersionPublisher>(std::make_unique<RemoteVersionPublisher>(std::move(link), place));
}

}  // namespace psd

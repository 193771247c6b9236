#include "server/rpc/publishing_service.h"

#include <utility>

#include <spdlog/fmt/fmt.h>

#include "common/wire/published_version.h"

namespace psd {
namespace {

/// Calls of begin() of a connection that wait: one, and earlier ones whose end has not arrived.
constexpr size_t kWaitingMax = 4;

std::vector<uint64_t> sizesIn(capnp::List<uint64_t>::Reader in) {
  std::vector<uint64_t> sizes;
  for (const uint64_t size : in) sizes.push_back(size);
  return sizes;
}

/// At least the memory that a part takes.
Result<uint64_t> memoryOf(schema::VersionPart::Reader part) {
  const uint64_t sizes = part.getShape().size() + part.getOffset().size() + part.getExtent().size();
  if (sizes > 3 * kPartDimsMax) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("a tensor has more than {} dimensions", kPartDimsMax)};
  }
  constexpr uint64_t kOverheadBytes = 128;
  return sizeof(VersionPart) + kOverheadBytes + part.getName().size() + part.getDtype().size() +
         sizes * sizeof(uint64_t);
}

/// Receives the bytes of a rank's parts.
class UploadService final : public CountedService<schema::VersionUpload> {
 public:
  UploadService(std::shared_ptr<Connection> connection, std::shared_ptr<PartsIntake::Upload> upload)
      : CountedService(std::move(connection)), upload_(std::move(upload)) {}

 protected:
  kj::Promise<void> write(WriteContext context) override {
    const auto params = context.getParams();
    const Status written = upload_->write(params.getOffset(), wire::bytesIn(params.getBytes()));
    context.releaseParams();
    wire::writeStatus(written, context.getResults().initStatus());
    return kj::READY_NOW;
  }

  kj::Promise<void> finish(FinishContext context) override {
    context.releaseParams();
    context.allowCancellation();
    if (isFinishing_) return KJ_EXCEPTION(OVERLOADED, "this upload is finishing already");
    isFinishing_ = true;
    return connection_->parked(upload_->finish())
        .then([context](Result<VersionInfo> version) mutable {
          wire::writeVersion(version, context.getResults());
        })
        .attach(kj::defer([this] { isFinishing_ = false; }));
  }

 private:
  const std::shared_ptr<PartsIntake::Upload> upload_;
  bool isFinishing_ = false;  // a finish() call is waiting
};

}  // namespace

Status PublishingService::take(schema::Publishing::DeclareParams::Reader params) {
  PSD_ASSIGN_OR_RETURN(PartsIntake & intake, administration_.intake());
  if (params.getFirst()) {
    declared_.clear();
    room_.clear();
  }
  uint64_t bytes = 0;
  for (const auto part : params.getParts()) {
    PSD_ASSIGN_OR_RETURN(const uint64_t memory, memoryOf(part));
    bytes += memory;
  }
  auto room = intake.declarations()->tryTake(bytes);
  if (!room) {
    return {ErrorCode::overloaded,
            fmt::format("the names and shapes of the parts of all publishers would take more "
                        "than {} bytes",
                        intake.declarations()->bytesMax())};
  }
  room_.push_back(*std::move(room));
  for (const auto part : params.getParts()) {
    VersionPart& declared = declared_.emplace_back();
    declared.name = wire::textIn(part.getName());
    declared.dtype = wire::textIn(part.getDtype());
    declared.shape = sizesIn(part.getShape());
    declared.offset = sizesIn(part.getOffset());
    declared.extent = sizesIn(part.getExtent());
    declared.checksum = part.getChecksum();
    PSD_RETURN_IF_ERROR(checkPart(declared));
  }
  return {};
}

kj::Promise<void> PublishingService::declare(DeclareContext context) {
  const Status taken = take(context.getParams());
  context.releaseParams();
  if (!taken.ok()) {
    declared_.clear();
    room_.clear();
  }
  wire::writeStatus(taken, context.getResults().initStatus());
  return kj::READY_NOW;
}

kj::Promise<void> PublishingService::begin(BeginContext context) {
  const auto params = context.getParams();
  PartsIntake::Request request{.rank = params.getRank(),
                               .worldSize = params.getWorldSize(),
                               .incarnation = params.getIncarnation(),
                               .step = params.getStep(),
                               .parts = std::exchange(declared_, {}),
                               .room = std::exchange(room_, {})};
  context.releaseParams();
  context.allowCancellation();
  const auto intake = administration_.intake();
  Status may = intake.ok() ? connection_->mayServe() : intake.status();
  if (may.ok()) may = connection_->caller().mayTrain();
  if (may.ok() && waiting_ == kWaitingMax) {
    may = Error{ErrorCode::overloaded, "this connection has begun other steps, which are not answered yet"};
  }
  if (!may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  waiting_++;
  return connection_->parked(intake->get().begin(std::move(request)))
      .then([this, context](const Result<PartsIntake::Begun>& begun) mutable { answer(context, begun); })
      .attach(kj::defer([this] { waiting_--; }));
}

void PublishingService::answer(BeginContext context, const Result<PartsIntake::Begun>& begun) {
  auto results = context.getResults();
  if (!begun.ok()) return wire::writeError(begun.error(), results.initError());
  if (begun->published) return wire::writeVersion(*begun->published, results.initPublished());
  const std::vector<uint32_t> sends = begun->upload->sends();
  auto out = results.initUpload();
  out.setTransfer(kj::heap<UploadService>(connection_, begun->upload));
  auto list = out.initSends(static_cast<kj::uint>(sends.size()));
  for (kj::uint i = 0; i < list.size(); i++) list.set(i, sends[i]);
  out.setArrived(begun->upload->arrived());
  out.setSliceBytes(connection_->loop().config().limits.sliceBytes);
}

}  // namespace psd

// The calls of ReadingService for published versions.

#include <algorithm>

#include "common/wire/published_version.h"
#include "server/rpc/reading_service.h"

namespace psd {
namespace {

constexpr uint64_t kEntryBytes = 256;  // of one version in an answer

}  // namespace

template <class Context>
kj::Promise<void> ReadingService::answerBytes(
    Context context, uint32_t wanted, std::function<VersionBytes(VersionStore&, uint64_t count)> read) {
  const uint64_t count = std::min<uint64_t>(wanted, connection_->loop().config().limits.sliceBytes);
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initError());
  };
  const auto store = administration_.versions();
  if (!store.ok()) {
    refuse(store.error());
    return kj::READY_NOW;
  }
  auto make = [this, context, &versions = store->get(), count, read = std::move(read)]() mutable {
    return administration_.workers()
        .run<VersionBytes>([&versions, count, read = std::move(read)] { return read(versions, count); })
        .then([this, context, count](VersionBytes bytes) mutable {
          if (!bytes.ok()) return wire::writeError(bytes.error(), context.getResults().initError());
          const auto owner = std::make_shared<const std::vector<std::byte>>(*std::move(bytes));
          connection_->pin(owner->data(), owner);
          auto results = context.getResults(capnp::MessageSize{8, 0});
          results.adoptBytes(wire::referenceBytes(results, std::span(*owner).first(count)));
        });
  };
  return connection_->answerWithin(count, std::move(make), std::move(refuse));
}

kj::Promise<void> ReadingService::versions(VersionsContext context) {
  context.releaseParams();
  const auto store = administration_.versions();
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initError());
  };
  if (!store.ok()) {
    refuse(store.error());
    return kj::READY_NOW;
  }
  auto versions = store->get().versions();
  const uint64_t bytes = versions.size() * kEntryBytes;
  auto make = [context, versions = std::move(versions)]() mutable {
    auto out = context.getResults().initVersions(static_cast<kj::uint>(versions.size()));
    for (kj::uint i = 0; i < out.size(); i++) wire::writeVersion(versions[i], out[i]);
  };
  return connection_->answerWithin(bytes, std::move(make), std::move(refuse));
}

kj::Promise<void> ReadingService::published(PublishedContext context) {
  const uint64_t number = context.getParams().getNumber();
  context.releaseParams();
  context.allowCancellation();
  const auto store = administration_.versions();
  if (!store.ok()) {
    wire::writeError(store.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  if (waitsForVersion_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a version");
  waitsForVersion_ = true;
  return connection_->parked(store->get().whenPublished(number))
      .then([context](Result<VersionInfo> version) mutable {
        wire::writeVersion(version, context.getResults());
      })
      .attach(kj::defer([this] { waitsForVersion_ = false; }));
}

kj::Promise<void> ReadingService::leaseVersion(LeaseVersionContext context) {
  const auto params = context.getParams();
  const uint64_t id = params.getLease(), number = params.getNumber();
  const std::chrono::seconds time(params.getSeconds());
  context.releaseParams();
  const auto store = administration_.versions();
  if (!store.ok()) {
    wire::writeError(store.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  const auto lease = [&versions = store->get(), id, number, time,
                      reader = connection_->caller().described()]() -> Result<VersionInfo> {
    PSD_ASSIGN_OR_RETURN(const VersionStore::Lease granted, versions.lease(id, number, time, reader));
    return versions.find(granted.number);
  };
  context.allowCancellation();
  return leaseThawed(store->get(), lease).then([context](Result<VersionInfo> version) mutable {
    wire::writeVersion(version, context.getResults());
  });
}

kj::Promise<Result<VersionInfo>> ReadingService::leaseThawed(VersionStore& versions, Lease lease) {
  return versions.whenThawed()
      .then([this, lease] { return administration_.workers().run<Result<VersionInfo>>(lease); })
      .then([this, &versions, lease](Result<VersionInfo> version) -> kj::Promise<Result<VersionInfo>> {
        if (version.ok() || !versions.frozen()) return version;
        return leaseThawed(versions, lease);
      });
}

kj::Promise<void> ReadingService::releaseVersion(ReleaseVersionContext context) {
  const uint64_t id = context.getParams().getLease();
  context.releaseParams();
  if (const auto store = administration_.versions(); store.ok()) store->get().release(id);
  return kj::READY_NOW;
}

kj::Promise<void> ReadingService::readVersion(ReadVersionContext context) {
  const auto params = context.getParams();
  const uint64_t number = params.getNumber(), offset = params.getOffset();
  const uint32_t count = params.getCount();
  context.releaseParams();
  return answerBytes(context, count, [number, offset](VersionStore& versions, uint64_t bytes) {
    return versions.read(number, offset, bytes);
  });
}

kj::Promise<void> ReadingService::patch(PatchContext context) {
  const auto params = context.getParams();
  const uint64_t history = params.getHistory(), from = params.getFrom(), to = params.getTo();
  context.releaseParams();
  const auto store = administration_.versions();
  if (!store.ok()) {
    wire::writeError(store.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return administration_.workers()
      .run<Result<uint64_t>>(
          [&versions = store->get(), history, from, to] { return versions.patchBytes(history, from, to); })
      .then([context](const Result<uint64_t>& size) mutable {
        if (!size.ok()) return wire::writeError(size.error(), context.getResults().initError());
        context.getResults().setBytes(*size);
      });
}

kj::Promise<void> ReadingService::freshness(FreshnessContext context) {
  context.releaseParams();
  wire::writeFreshness(administration_.freshness(), context.getResults());
  return kj::READY_NOW;
}

kj::Promise<void> ReadingService::readPatch(ReadPatchContext context) {
  const auto params = context.getParams();
  const uint64_t history = params.getHistory(), from = params.getFrom(), to = params.getTo(),
                 offset = params.getOffset();
  const uint32_t count = params.getCount();
  context.releaseParams();
  return answerBytes(context, count, [history, from, to, offset](VersionStore& versions, uint64_t bytes) {
    return versions.readPatch(history, from, to, offset, bytes);
  });
}

}  // namespace psd

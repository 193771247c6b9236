#include "trainer/client/version_calls.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/published_version.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

/// The daemon's error, which names the daemon.
Error errorOf(const DaemonConnection& connection, schema::Error::Reader error) {
  const Error read = sanitized(wire::readError(error));
  return {read.code, connection.server() + ": " + read.message};
}

Result<PublishedVersion> versionOf(const DaemonConnection& connection, schema::VersionResult::Reader answer) {
  if (answer.isError()) return errorOf(connection, answer.getError());
  PublishedVersion version = wire::readVersion(answer.getVersion());
  if (version.number != 0) return version;
  return Error{ErrorCode::protocolMismatch, connection.server() + ": the daemon's version has no number"};
}

/// Makes a call; a daemon that does not know it is an error.
template <class Answer, class Send>
kj::Promise<Answer> ask(DaemonConnection& connection, Send send) {
  return connection.call([&connection, send = std::move(send)]() mutable {
    return kj::Promise<Answer>(send()).catch_([&connection](kj::Exception&& exception) -> Answer {
      if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
        return Error{
            ErrorCode::protocolMismatch,
            connection.server() +
                ": the daemon is too old to publish versions: update it to the version of this program"};
      }
      kj::throwFatalException(kj::mv(exception));
    });
  });
}

}  // namespace

kj::Promise<Result<std::vector<PublishedVersion>>> readVersions(DaemonConnection& connection) {
  using Versions = Result<std::vector<PublishedVersion>>;
  return ask<Versions>(connection, [&connection] {
    return connection.reading().versionsRequest().send().then(
        [&connection](capnp::Response<schema::VersionsResult> answer) -> Versions {
          if (answer.isError()) return errorOf(connection, answer.getError());
          std::vector<PublishedVersion> versions;
          for (const auto version : answer.getVersions()) versions.push_back(wire::readVersion(version));
          return versions;
        });
  });
}

kj::Promise<Result<PublishedVersion>> awaitVersion(DaemonConnection& connection, uint64_t number) {
  using Version = Result<PublishedVersion>;
  return ask<Version>(connection, [&connection, number] {
    auto request = connection.reading().publishedRequest();
    request.setNumber(number);
    return request.send().then(
        [&connection](capnp::Response<schema::VersionResult> answer) -> Version {
          return versionOf(connection, answer);
        },
        [&connection](kj::Exception&& exception) -> Version {
          if (exception.getType() != kj::Exception::Type::OVERLOADED) {
            kj::throwFatalException(kj::mv(exception));
          }
          return Error{ErrorCode::overloaded, connection.server() + ": this connection waits already"};
        });
  });
}

kj::Promise<Result<VersionFreshness>> readFreshness(DaemonConnection& connection) {
  using Freshness = Result<VersionFreshness>;
  return ask<Freshness>(connection, [&connection] {
    return connection.reading().freshnessRequest().send().then(
        [&connection](capnp::Response<schema::FreshnessResult> answer) -> Freshness {
          if (answer.isError()) return errorOf(connection, answer.getError());
          return wire::readFreshness(answer);
        });
  });
}

kj::Promise<Result<PublishedVersion>> leaseVersion(DaemonConnection& connection, const VersionLease& lease) {
  using Version = Result<PublishedVersion>;
  return ask<Version>(connection, [&connection, lease] {
    auto request = connection.reading().leaseVersionRequest();
    request.setLease(lease.id);
    request.setNumber(lease.number);
    request.setSeconds(static_cast<uint32_t>(lease.time.count()));
    return request.send().then(
        [&connection, lease](capnp::Response<schema::VersionResult> answer) -> Version {
          auto version = versionOf(connection, answer);
          if (!version.ok() || lease.number == 0 || version->number == lease.number) return version;
          return Error{ErrorCode::protocolMismatch,
                       fmt::format("{}: the daemon has leased version {} instead of {}", connection.server(),
                                   version->number, lease.number)};
        });
  });
}

kj::Promise<Status> releaseVersion(DaemonConnection& connection, uint64_t lease) {
  return ask<Status>(connection, [&connection, lease] {
    auto request = connection.reading().releaseVersionRequest();
    request.setLease(lease);
    return request.send().then(
        [](capnp::Response<schema::Reading::ReleaseVersionResults>) { return Status(); });
  });
}

kj::Promise<Result<uint64_t>> findPatch(DaemonConnection& connection, const PatchKey& ends) {
  using Size = Result<uint64_t>;
  return ask<Size>(connection, [&connection, ends] {
    auto request = connection.reading().patchRequest();
    request.setHistory(ends.history);
    request.setFrom(ends.from);
    request.setTo(ends.to);
    return request.send().then(
        [&connection](capnp::Response<schema::PatchResult> answer) -> Size {
          if (answer.isError()) return errorOf(connection, answer.getError());
          return answer.getBytes();
        },
        [](kj::Exception&& exception) -> Size {
          if (exception.getType() != kj::Exception::Type::UNIMPLEMENTED) {
            kj::throwFatalException(kj::mv(exception));
          }
          return uint64_t{0};  // an earlier daemon
        });
  });
}

namespace {

/// Fills `into` with the bytes that `request(offset, count)` asks for, from `offset` on.
template <class Request>
kj::Promise<Status> readBytes(DaemonConnection& connection, const Request& request, uint64_t offset,
                              std::span<std::byte> into) {
  return ask<Status>(connection, [&connection, request, offset, into] {
    return request(offset, static_cast<uint32_t>(into.size()))
        .then([&connection, request, offset,
               into](capnp::Response<schema::VersionBytesResult> answer) -> kj::Promise<Status> {
          if (answer.isError()) return Status(errorOf(connection, answer.getError()));
          const auto bytes = wire::bytesIn(answer.getBytes());
          if (bytes.empty() || bytes.size() > into.size()) {
            return Status(ErrorCode::protocolMismatch,
                          fmt::format("{}: the daemon sent {} bytes of a version instead of {}",
                                      connection.server(), bytes.size(), into.size()));
          }
          std::ranges::copy(bytes, into.begin());
          if (bytes.size() == into.size()) return Status();
          // Its slices are smaller.
          return readBytes(connection, request, offset + bytes.size(), into.subspan(bytes.size()));
        });
  });
}

}  // namespace

kj::Promise<Status> readPatchBytes(DaemonConnection& connection, const PatchKey& ends, uint64_t offset,
                                   std::span<std::byte> into) {
  const auto request = [&connection, ends](uint64_t at, uint32_t count) {
    auto call = connection.reading().readPatchRequest();
    call.setHistory(ends.history);
    call.setFrom(ends.from);
    call.setTo(ends.to);
    call.setOffset(at);
    call.setCount(count);
    return call.send();
  };
  return readBytes(connection, request, offset, into);
}

kj::Promise<Status> readVersionBytes(DaemonConnection& connection, uint64_t number, uint64_t offset,
                                     std::span<std::byte> into) {
  const auto request = [&connection, number](uint64_t at, uint32_t count) {
    auto call = connection.reading().readVersionRequest();
    call.setNumber(number);
    call.setOffset(at);
    call.setCount(count);
    return call.send();
  };
  return readBytes(connection, request, offset, into);
}

}  // namespace psd

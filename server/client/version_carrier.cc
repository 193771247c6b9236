#include "server/client/version_carrier.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "common/safetensors/combined_version.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/published_version.h"

namespace psd {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;
constexpr size_t kPiecesUnderWay = 4;
constexpr uint64_t kElementBytesMax = 8;  // of a version
constexpr size_t kCarriedReasonMax = 3000;

Error named(const std::string& who, const Error& error) {
  return {error.code, who + ": " + printable(error.message, kCarriedReasonMax)};
}

/// Receives the file of a version. Belongs to the event loop.
class FileSink final : public schema::ReplicaSink::Server {
 public:
  /// `expected`: the bytes of the version, unless the source sends a newer one in its place. A source that
  /// sends more than `most` bytes is refused.
  FileSink(std::shared_ptr<std::vector<std::byte>> file, uint64_t expected, uint64_t most)
      : file_(std::move(file)), expected_(std::min(expected, most)), most_(most) {}

 protected:
  kj::Promise<void> image(ImageContext context) override {
    wire::writeStatus(append(wire::bytesIn(context.getParams().getBytes())),
                      context.getResults().initStatus());
    return kj::READY_NOW;
  }
  kj::Promise<void> imageDone(ImageDoneContext context) override {
    wire::writeStatus(Status(), context.getResults().initStatus());
    return kj::READY_NOW;
  }

 private:
  Status append(std::span<const std::byte> bytes) {
    if (bytes.size() > most_ - std::min<uint64_t>(most_, file_->size())) {
      return {ErrorCode::overloaded, "a published version is larger than its model allows"};
    }
    try {
      if (file_->empty()) file_->reserve(expected_);
      file_->insert(file_->end(), bytes.begin(), bytes.end());
    } catch (const std::bad_alloc&) {
      return {ErrorCode::overloaded, "out of memory for a published version in psd move"};
    }
    return {};
  }

  const std::shared_ptr<std::vector<std::byte>> file_;
  const uint64_t expected_, most_;
};

/// Sends a file to the sink of a target, with several pieces under way. Belongs to the event loop.
class FileSending {
 public:
  FileSending(schema::ReplicaSink::Client sink, MovedVersion::File file) : sink_(kj::mv(sink)), file_(file) {}

  kj::Promise<Status> run() {
    auto lines = kj::heapArrayBuilder<kj::Promise<void>>(kPiecesUnderWay);
    for (size_t i = 0; i < kPiecesUnderWay; i++) lines.add(sendOn());
    return kj::joinPromises(lines.finish()).then([this]() -> kj::Promise<Status> {
      if (!outcome_.ok()) return outcome_;
      auto request = sink_.imageDoneRequest();
      request.setPath("version");
      return request.send().then([](auto answer) { return wire::readStatus(answer.getStatus()); });
    });
  }

 private:
  /// The next bytes of the file; empty: there are none.
  std::span<const std::byte> next() {
    const auto head = std::as_bytes(std::span(file_.head));
    const bool isHead = at_ < head.size();
    const std::span<const std::byte> left =
        isHead ? head.subspan(at_) : file_.values.subspan(std::min(at_ - head.size(), file_.values.size()));
    const auto piece = left.first(std::min<uint64_t>(kPieceBytes, left.size()));
    at_ += piece.size();
    return piece;
  }
  kj::Promise<void> sendOn() {
    const std::span<const std::byte> piece = outcome_.ok() ? next() : std::span<const std::byte>();
    if (piece.empty()) return kj::READY_NOW;
    auto request = sink_.imageRequest();
    request.setPath("version");
    request.setBytes(kj::arrayPtr(reinterpret_cast<const kj::byte*>(piece.data()), piece.size()));
    return request.send().then([this](auto answer) {
      const Status kept = wire::readStatus(answer.getStatus());
      if (outcome_.ok()) outcome_ = kept;
      return sendOn();
    });
  }

  schema::ReplicaSink::Client sink_;
  const MovedVersion::File file_;
  uint64_t at_ = 0;
  Status outcome_;  // the first error
};

/// All results, or the first error.
template <class T>
kj::Promise<Result<std::vector<T>>> joinResults(kj::Vector<kj::Promise<Result<T>>> promises) {
  return kj::joinPromises(promises.releaseAsArray())
      .then([](kj::Array<Result<T>> results) -> Result<std::vector<T>> {
        std::vector<T> values;
        for (Result<T>& result : results) {
          PSD_ASSIGN_OR_RETURN(values.emplace_back(), std::move(result));
        }
        return values;
      });
}

}  // namespace

void writeContinuation(const VersionsContinuation& versions, schema::MovedVersions::Builder out) {
  out.setHistory(versions.history);
  out.setWholeHistory(versions.wholeHistory);
  out.setHighest(versions.highest);
  out.setRounds(versions.rounds);
  out.setAhead(versions.ahead);
  auto numbers = out.initNumbers(static_cast<kj::uint>(versions.numbers.size()));
  for (kj::uint i = 0; i < numbers.size(); i++) numbers.set(i, versions.numbers[i]);
  auto leased = out.initLeased(static_cast<kj::uint>(versions.leases.size()));
  auto seconds = out.initLeasedSeconds(leased.size());
  kj::uint i = 0;
  for (const auto& [number, time] : versions.leases) {
    leased.set(i, number);
    seconds.set(i++, static_cast<uint64_t>(time.count()));
  }
}

VersionsContinuation readContinuation(schema::MovedVersions::Reader in) {
  VersionsContinuation versions{.history = in.getHistory(),
                                .wholeHistory = in.getWholeHistory(),
                                .highest = in.getHighest(),
                                .rounds = in.getRounds(),
                                .ahead = in.getAhead()};
  for (const uint64_t number : in.getNumbers()) versions.numbers.push_back(number);
  std::ranges::sort(versions.numbers);
  const auto leased = in.getLeased();
  const auto seconds = in.getLeasedSeconds();
  for (kj::uint i = 0; i < std::min(leased.size(), seconds.size()); i++) {
    versions.leases[leased[i]] = std::chrono::seconds(std::min<uint64_t>(seconds[i], UINT32_MAX));
  }
  return versions;
}

VersionCarrier::VersionCarrier(std::vector<Source> sources, std::vector<Target> targets, uint64_t seed)
    : sources_(std::move(sources)), targets_(std::move(targets)), seed_(seed) {
  for (const Target& target : targets_) partitions_.push_back(target.partition);
}

kj::Promise<Result<std::vector<VersionInfo>>> VersionCarrier::list() {
  using List = std::vector<VersionInfo>;
  kj::Vector<kj::Promise<Result<List>>> lists;
  for (Source& source : sources_) {
    lists.add(source.reading.versionsRequest().send().dropPipeline().then(
        [name = source.name](capnp::Response<schema::VersionsResult> answer) -> Result<List> {
          if (answer.isError()) return named(name, wire::readError(answer.getError()));
          List versions;
          for (const auto version : answer.getVersions()) versions.push_back(wire::readVersion(version));
          return versions;
        }));
  }
  return joinResults<List>(kj::mv(lists)).then([this](Result<std::vector<List>> lists) -> Result<List> {
    if (!lists.ok()) return lists.error();
    for (size_t i = 0; i < sources_.size(); i++) {
      sources_[i].bytes.clear();
      for (const VersionInfo& version : (*lists)[i]) sources_[i].bytes[version.number] = version.bytes;
    }
    if (lists->size() > 1) return commonVersions(*lists);
    std::erase_if(lists->front(), [](const VersionInfo& version) { return version.parts > 0; });
    return std::move(lists->front());
  });
}

kj::Promise<Result<uint64_t>> VersionCarrier::bytes(schema::VersionTerms::Reader lead) {
  if (sources_.size() == 1) return Result<uint64_t>(lead.getBytes());
  // The lead knows those of its parts.
  return list().then([](const Result<std::vector<VersionInfo>>& versions) -> Result<uint64_t> {
    PSD_RETURN_IF_ERROR(versions);
    uint64_t bytes = 0;
    for (const VersionInfo& version : *versions) bytes += version.bytes;
    return bytes;
  });
}

kj::Promise<VersionCarrier::Copied> VersionCarrier::relayNext() {
  auto sink = targets_.front().arriving.versionSinkRequest();
  sink.setOldest(oldest_);
  auto request = sources_.front().admin.giveVersionRequest();
  request.setAfter(newest_);
  request.setSink(sink.send().getSink());
  const std::string names = sources_.front().name + " to " + targets_.front().name;
  return request.send().then(
      [this, names](capnp::Response<schema::Admin::GiveVersionResults> answer) -> Copied {
        const Status given = wire::readStatus(answer.getStatus());
        if (!given.ok()) return named(names, given.error());
        if (answer.getNumber() == 0) return std::optional<uint64_t>();
        if (answer.getNumber() <= newest_) {
          return Error{ErrorCode::protocolMismatch, names + ": sends a version that it has sent already"};
        }
        newest_ = answer.getNumber();
        oldest_ = answer.getOldest();
        copies_++;
        return std::optional(answer.getNewer());
      });
}

kj::Promise<VersionCarrier::Copied> VersionCarrier::recutNext() {
  return list().then([this](const Result<std::vector<VersionInfo>>& versions) {
    return versions.ok() ? recutNextOf(*versions) : kj::Promise<Copied>(versions.error());
  });
}

kj::Promise<VersionCarrier::Copied> VersionCarrier::recutNextOf(const std::vector<VersionInfo>& versions) {
  numbers_.clear();
  for (const VersionInfo& version : versions) {
    if (!leftOut_.contains(version.number)) numbers_.push_back(version.number);
  }
  const auto next = std::ranges::upper_bound(numbers_, newest_);
  if (next == numbers_.end()) return Copied(std::optional<uint64_t>());
  const uint64_t number = *next;
  return read(number).then([this, number](Result<std::optional<Files>> files) -> kj::Promise<Copied> {
    if (!files.ok()) return Copied(files.error());
    if (*files) return recut(number, std::move(**files));
    leftOut_.insert(number);
    return recutNext();
  });
}

kj::Promise<VersionCarrier::Copied> VersionCarrier::recut(uint64_t number, Files files) {
  using Made = Result<std::shared_ptr<const MovedVersion>>;
  const auto kept = std::make_shared<Files>(std::move(files));
  // On a thread, since the daemons expect heartbeats meanwhile.
  return background_
      .tryRun<Made>([this, kept] { return MovedVersion::make(std::move(*kept), partitions_, seed_); })
      .then([this, number](const Made& made) -> kj::Promise<Status> {
        if (!made.ok()) return made.status();
        if ((*made)->info().number == number) return send(*made, numbers_.front());
        return Status(ErrorCode::protocolMismatch, "another version was sent than that which was asked for");
      })
      .then([this, number](const Status& sent) -> Copied {
        PSD_RETURN_IF_ERROR(sent);
        newest_ = number;
        copies_++;
        const auto next = std::ranges::upper_bound(numbers_, newest_);
        return std::optional(static_cast<uint64_t>(numbers_.end() - next));
      });
}

kj::Promise<Result<std::optional<VersionCarrier::Files>>> VersionCarrier::read(uint64_t number) {
  using File = std::optional<std::vector<std::byte>>;
  uint64_t elements = 0;
  for (const ModelSpec& partition : partitions_) elements += partition.parameterCount();
  const uint64_t most = elements * kElementBytesMax + sizeof(uint64_t) + kVersionHeaderBytesMax;
  kj::Vector<kj::Promise<Result<File>>> files;
  for (Source& source : sources_) {
    auto file = std::make_shared<std::vector<std::byte>>();
    auto request = source.admin.giveVersionRequest();
    request.setAfter(number - 1);
    request.setSink(kj::heap<FileSink>(file, source.bytes[number], most));
    using Given = capnp::Response<schema::Admin::GiveVersionResults>;
    files.add(request.send().then([file, number, name = source.name](Given answer) -> Result<File> {
      const Status given = wire::readStatus(answer.getStatus());
      if (!given.ok()) return named(name, given.error());
      return answer.getNumber() == number ? File(std::move(*file)) : File();
    }));
  }
  return joinResults<File>(kj::mv(files))
      .then([](Result<std::vector<File>> read) -> Result<std::optional<Files>> {
        if (!read.ok()) return read.error();
        Files all;
        for (File& file : *read) {
          if (!file) return std::optional<Files>();
          all.push_back(*std::move(file));
        }
        return std::optional(std::move(all));
      });
}

kj::Promise<Status> VersionCarrier::send(const std::shared_ptr<const MovedVersion>& version,
                                         uint64_t oldest) {
  kj::Vector<kj::Promise<Result<bool>>> sent;
  for (size_t i = 0; i < targets_.size(); i++) {
    auto request = targets_[i].arriving.versionSinkRequest();
    request.setOldest(oldest);
    auto sending = kj::heap<FileSending>(request.send().getSink(), version->at(i));
    auto done = sending->run().then([name = targets_[i].name](const Status& outcome) -> Result<bool> {
      if (!outcome.ok()) return named(name, outcome.error());
      return true;
    });
    sent.add(done.attach(kj::mv(sending), version));
  }
  return joinResults<bool>(kj::mv(sent)).then([](const Result<std::vector<bool>>& done) {
    return done.status();
  });
}

Status VersionCarrier::continueAt(size_t target,
                                  const std::vector<capnp::Response<schema::QuiescedResult>>& sources,
                                  schema::MovedVersions::Builder out) const {
  std::vector<VersionsContinuation> continuations;
  for (size_t i = 0; i < sources.size(); i++) {
    const auto quiesced = sources[i].getQuiesced();
    if (!quiesced.hasVersions()) {
      return {ErrorCode::invalidArgument,
              sources_[i].name + ": `publish` is absent there, and the first daemon publishes versions"};
    }
    continuations.push_back(readContinuation(quiesced.getVersions()));
  }
  const Partition own{static_cast<uint32_t>(target), static_cast<uint32_t>(targets_.size())};
  writeContinuation(
      isOneToOne() ? continuations.front() : continuationAt(own, continuations, numbers_, seed_), out);
  return {};
}

}  // namespace psd

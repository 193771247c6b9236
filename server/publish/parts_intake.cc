#include "server/publish/parts_intake.h"

#include <algorithm>
#include <utility>

#include <pthread.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "common/text/text.h"
#include "server/checkpoint/manifest.h"
#include "server/publish/published_step.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kIntakePoll{20};  // the most that the end of a wait is late
constexpr std::chrono::seconds kIntakePrune{1};       // between looks for leases that have ended
constexpr std::chrono::seconds kSpareKept{60};        // for which unused memory waits for the next step
constexpr uint64_t kDeclarationsBytes = 256u << 20;
constexpr size_t kRanksNamedMax = 16, kMissingMax = 64, kLinesMax = 64;

/// "rank 3", "ranks 0, 2 and 5", "ranks 0, …, 15 and 40 others".
std::string namedRanks(const std::vector<uint32_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const size_t named = std::min(ranks.size(), kRanksNamedMax), others = ranks.size() - named;
  std::string text = "ranks ";
  for (size_t i = 0; i < named; i++) {
    const bool isLast = i + 1 == named && others == 0;
    text += fmt::format("{}{}", i == 0 ? "" : isLast ? " and " : ", ", ranks[i]);
  }
  return others == 0 ? text : text + fmt::format(" and {} others", others);
}

Error shuttingDownError() { return {ErrorCode::shuttingDown, "the daemon is shutting down"}; }

}  // namespace

/// A step on its way to a version: what each rank gives, and who waits. Guarded by the intake's mutex, except
/// for the bytes of the assembly.
class PartsIntake::Step {
 public:
  struct Member {
    uint64_t incarnation = 0;
    uint64_t turn = 0;  // rises when the rank begins again: earlier uploads are void
    PartAssembly::Parts parts;
    std::vector<ByteBudget::Lease> room;
    Fulfiller begins;  // null: no call waits
    std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<Result<VersionInfo>>>> finishes;
    std::mutex writing;  // taken before the intake's; held while bytes of the rank are written

    void end(const Result<VersionInfo>& outcome) {
      if (begins.get() != nullptr) {
        begins->fulfill(outcome.ok() ? Result<Begun>(Begun{*outcome, nullptr})
                                     : Result<Begun>(outcome.error()));
      }
      begins = nullptr;
      for (auto& each : finishes) each->fulfill(Result<VersionInfo>(outcome));
      finishes.clear();
    }
  };

  Step(uint64_t step, uint32_t worldSize, Time now)
      : step(step), worldSize(worldSize), since(now), progress(now) {}

  bool allHaveBegun() const { return members.size() == worldSize; }
  /// The ranks that have not begun, or whose bytes have not all arrived.
  std::vector<uint32_t> missing() const {
    if (assembly) return assembly->unfinished();
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < worldSize; rank++) {
      if (!members.contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  /// Tells all that wait, and releases the memory.
  void end(const Result<VersionInfo>& with) {
    outcome = with;
    for (auto& [rank, member] : members) {
      member.end(with);
      member.parts = nullptr;
      member.room.clear();
    }
    assembly = nullptr;
  }

  const uint64_t step;
  const uint32_t worldSize;
  const Time since;
  std::atomic<Time> progress;  // when a byte arrived last
  std::map<uint32_t, Member> members;
  uint64_t revision = 0;                   // rises when a member begins
  std::shared_ptr<PartAssembly> assembly;  // null: not all ranks have begun, or the step has ended
  std::optional<Result<VersionInfo>> outcome;
};

std::vector<uint32_t> PartsIntake::Upload::sends() const {
  const std::lock_guard hold(intake_.mutex_);
  return step_->assembly ? step_->assembly->sends(rank_) : std::vector<uint32_t>();
}

uint64_t PartsIntake::Upload::arrived() const {
  // Waits for a write of an earlier upload of the rank.
  const std::lock_guard alone(step_->members.at(rank_).writing);
  const std::lock_guard hold(intake_.mutex_);
  return step_->assembly ? step_->assembly->arrived(rank_) : 0;
}

Status PartsIntake::Upload::mayGoOn() const {
  if (step_->outcome) return step_->outcome->status();
  if (step_->members.at(rank_).turn == turn_) return {};
  PSD_RETURN_IF_ERROR(intake_.fences_.check(rank_, incarnation_));
  return {ErrorCode::unavailable, fmt::format("rank {} has begun step {} again", rank_, step_->step)};
}

Status PartsIntake::Upload::write(uint64_t offset, std::span<const std::byte> bytes) {
  const std::lock_guard alone(step_->members.at(rank_).writing);
  std::shared_ptr<PartAssembly> assembly;
  {
    const std::lock_guard hold(intake_.mutex_);
    PSD_RETURN_IF_ERROR(mayGoOn());
    assembly = step_->assembly;
  }
  if (!assembly) return {ErrorCode::badSlice, fmt::format("step {} is complete", step_->step)};
  PSD_RETURN_IF_ERROR(assembly->write(rank_, offset, bytes));
  step_->progress = intake_.clock_();
  intake_.receivedBytes_ += bytes.size();
  if (assembly->isWhole()) intake_.wake_.notify_one();
  return {};
}

kj::Promise<Result<VersionInfo>> PartsIntake::Upload::finish() {
  const std::lock_guard hold(intake_.mutex_);
  if (step_->outcome) return Result<VersionInfo>(*step_->outcome);
  if (const Status may = mayGoOn(); !may.ok()) return Result<VersionInfo>(may.error());
  auto finish = kj::newPromiseAndCrossThreadFulfiller<Result<VersionInfo>>();
  auto& waiting = step_->members.at(rank_).finishes;
  std::erase_if(waiting, [](const auto& each) { return !each->isWaiting(); });
  waiting.push_back(kj::mv(finish.fulfiller));
  return kj::mv(finish.promise);
}

PartsIntake::PartsIntake(std::shared_ptr<VersionStore> versions, Terms terms, std::string path, Clock clock)
    : versions_(std::move(versions)),
      path_(std::move(path)),
      clock_(std::move(clock)),
      declarations_(ByteBudget::make(kDeclarationsBytes)),
      terms_(terms) {
  thread_ = std::thread([this] { run(); });
}

PartsIntake::~PartsIntake() { finish(); }

void PartsIntake::follow(Terms terms) {
  const std::lock_guard hold(mutex_);
  terms_ = terms;
}

void PartsIntake::finish() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  versions_->end(shuttingDownError());
}

Status PartsIntake::check(const Request& request) const {
  const uint32_t ranksMax = [this] {
    const std::lock_guard hold(mutex_);
    return terms_.ranksMax;
  }();
  if (request.worldSize == 0 || request.worldSize > ranksMax) {
    return {ErrorCode::invalidArgument, fmt::format("world size {} is not from 1 to {} (limits.connections)",
                                                    request.worldSize, ranksMax)};
  }
  if (request.rank >= request.worldSize) {
    return {ErrorCode::invalidArgument,
            fmt::format("rank {} is not below the world size {}", request.rank, request.worldSize)};
  }
  if (request.incarnation == 0) return {ErrorCode::invalidArgument, "the incarnation must not be 0"};
  for (const VersionPart& part : request.parts) PSD_RETURN_IF_ERROR(checkPart(part));
  return {};
}

kj::Promise<Result<PartsIntake::Begun>> PartsIntake::begin(Request request) {
  using Answer = Result<Begun>;
  if (const Status valid = check(request); !valid.ok()) return Answer(valid.error());
  auto answer = kj::newPromiseAndCrossThreadFulfiller<Answer>();
  const std::lock_guard hold(mutex_);
  if (ending_) return Answer(shuttingDownError());
  const Status may = fences_.check(request.rank, request.incarnation);
  if (!may.ok()) return Answer(may.error());
  const uint32_t rank = request.rank;
  const uint64_t incarnation = request.incarnation;
  const auto newest = versions_->find(0);
  if (newest.ok() && request.step <= newest->step) {
    fences_.admit(rank, incarnation);
    repeated_.push_back({std::move(request), kj::mv(answer.fulfiller)});
    wake_.notify_one();
    return kj::mv(answer.promise);
  }
  const bool isWritten = writing_ && request.step <= writing_->step;
  const std::optional<Error> refused =
      isWritten ? joinWriting(request, answer.fulfiller) : joinCurrent(request, answer.fulfiller);
  if (refused) return Answer(*refused);
  fences_.admit(rank, incarnation);  // a program that is refused does not take over the rank
  return kj::mv(answer.promise);
}

std::optional<Error> PartsIntake::joinWriting(const Request& request, Fulfiller& answer) {
  const auto member = writing_->members.find(request.rank);
  if (request.step < writing_->step || member == writing_->members.end() ||
      *member->second.parts != request.parts) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("step {} is complete: rank {} cannot give {}", writing_->step, request.rank,
                             request.step < writing_->step ? "an earlier one" : "other parts of it")};
  }
  member->second.end(
      Error{ErrorCode::unavailable, fmt::format("rank {} has begun the step again", request.rank)});
  member->second.begins = kj::mv(answer);
  return {};
}

std::optional<Error> PartsIntake::joinCurrent(Request& request, Fulfiller& answer) {
  const uint32_t rank = request.rank;
  if (current_ && request.step < current_->step) {
    return Error{ErrorCode::notReady, fmt::format("step {} is abandoned: other ranks have begun step {}",
                                                  request.step, current_->step)};
  }
  if (current_ && request.step > current_->step) {
    abandon(ErrorCode::notReady, fmt::format("rank {} has begun step {}", rank, request.step));
  }
  if (current_ && request.worldSize != current_->worldSize) {
    return Error{
        ErrorCode::worldSizeMismatch,
        fmt::format("rank {} has begun step {} with world size {}, and {} with {}", rank, request.step,
                    request.worldSize, current_->members.begin()->first, current_->worldSize)};
  }
  if (current_ && current_->assembly && *current_->members.at(rank).parts != request.parts) {
    abandon(ErrorCode::notReady, fmt::format("rank {} has begun it again with other parts", rank));
  }
  if (!current_) current_ = std::make_shared<Step>(request.step, request.worldSize, clock_());
  Step::Member& member = current_->members[rank];
  const bool isReplaced = member.incarnation != 0 && member.incarnation != request.incarnation;
  member.end(isReplaced
                 ? PublisherFences::replaced(rank)
                 : Error{ErrorCode::unavailable, fmt::format("rank {} has begun the step again", rank)});
  member.incarnation = request.incarnation;
  member.turn++;
  if (current_->assembly) {
    current_->progress = clock_();
    answer->fulfill(
        Begun{{}, std::make_shared<Upload>(*this, current_, rank, member.turn, member.incarnation)});
    return {};
  }
  member.parts = std::make_shared<const std::vector<VersionPart>>(std::move(request.parts));
  member.room = std::move(request.room);
  member.begins = kj::mv(answer);
  current_->revision++;
  if (current_->allHaveBegun()) wake_.notify_one();
  return {};
}

void PartsIntake::abandon(ErrorCode code, const std::string& why) {
  const std::string line = fmt::format("step {} is abandoned: {}", current_->step, why);
  logLine(spdlog::level::warn, {.event = "abandoned", .step = current_->step}, "{}", line);
  if (abandonedLines_.size() < kLinesMax) abandonedLines_.push_back(line);
  abandoned_++;
  current_->end(Error{code, line});
  current_ = nullptr;
}

void PartsIntake::expire() {
  const bool isPlanned = current_->assembly != nullptr;
  if (!isPlanned && current_->allHaveBegun()) return;
  if (clock_() < (isPlanned ? current_->progress.load() : current_->since) + terms_.timeout) return;
  const std::vector<uint32_t> missing = current_->missing();
  const char* const verb = missing.size() == 1 ? "has" : "have";
  abandon(ErrorCode::deadlineExceeded,
          fmt::format("{} of {} {} not {} within {} s (publish.parts_timeout_seconds)", namedRanks(missing),
                      current_->worldSize, verb, isPlanned ? "sent all, and no byte has arrived" : "begun it",
                      terms_.timeout.count()));
}

void PartsIntake::run() {
  pthread_setname_np(pthread_self(), "psd-publish");
  Time pruned = std::chrono::steady_clock::now();
  std::unique_lock hold(mutex_);
  while (!ending_) {
    wake_.wait_for(hold, kIntakePoll);
    if (ending_) break;
    while (!repeated_.empty() && !ending_) answerRepeated(hold);
    if (current_ && current_->assembly && current_->assembly->isWhole()) write(hold);
    if (current_) expire();
    if (current_ && !current_->assembly && current_->allHaveBegun()) plan(hold);
    if (std::chrono::steady_clock::now() < pruned + kIntakePrune) continue;
    hold.unlock();
    versions_->prune();
    pruned = std::chrono::steady_clock::now();
    if (pruned > spareSince_ + kSpareKept) spare_ = {};
    hold.lock();
  }
  if (current_) current_->end(shuttingDownError());
  current_ = nullptr;
  for (Repeated& each : repeated_) each.answer->fulfill(Result<Begun>(shuttingDownError()));
  repeated_.clear();
}

void PartsIntake::answerRepeated(std::unique_lock<std::mutex>& hold) {
  const Repeated repeated = std::move(repeated_.front());
  repeated_.pop_front();
  hold.unlock();
  const uint64_t step = repeated.request.step;
  const std::vector<VersionInfo> versions = versions_->versions();
  const auto version = std::ranges::find(versions, step, &VersionInfo::step);
  Result<Begun> answer =
      Error{ErrorCode::invalidArgument,
            fmt::format("step {} is not newer than step {}, of version {}: steps must rise", step,
                        versions.empty() ? 0 : versions.back().step,
                        versions.empty() ? 0 : versions.back().number)};
  if (version != versions.end()) {
    const Status same = checkPublished(*versions_, *version, repeated.request.parts);
    answer = same.ok() ? Result<Begun>(Begun{*version, nullptr}) : Result<Begun>(same.error());
  }
  repeated.answer->fulfill(std::move(answer));
  hold.lock();
}

void PartsIntake::plan(std::unique_lock<std::mutex>& hold) {
  const std::shared_ptr<Step> step = current_;
  const uint64_t revision = step->revision;
  std::vector<PartAssembly::Parts> ranks;
  for (const auto& [rank, member] : step->members) ranks.push_back(member.parts);
  hold.unlock();
  const auto attempt = [&]() -> Result<std::shared_ptr<PartAssembly>> {
    PSD_ASSIGN_OR_RETURN(auto assembly, PartAssembly::plan(std::move(ranks)));
    if (const uint64_t bytes = versionHeadBytes(assembly->tensors(), 0); bytes > kVersionHeaderBytesMax) {
      return Error{ErrorCode::overloaded,
                   fmt::format("the header of the version would have {} bytes; the limit is {}", bytes,
                               kVersionHeaderBytesMax)};
    }
    PSD_RETURN_IF_ERROR(versions_->admits(assembly->tensors(), 0));
    PSD_RETURN_IF_ERROR(assembly->allocate(std::exchange(spare_, {})));
    return assembly;
  };
  auto assembly = attempt();
  hold.lock();
  if (current_ != step || step->revision != revision) return;  // a rank has begun meanwhile
  if (!assembly.ok()) return abandon(assembly.error().code, assembly.message());
  step->assembly = *std::move(assembly);
  step->progress = clock_();
  for (auto& [rank, member] : step->members) {
    member.begins->fulfill(
        Begun{{}, std::make_shared<Upload>(*this, step, rank, member.turn, member.incarnation)});
    member.begins = nullptr;
  }
}

void PartsIntake::write(std::unique_lock<std::mutex>& hold) {
  writing_ = std::exchange(current_, nullptr);
  const std::shared_ptr<PartAssembly> assembly = writing_->assembly;
  hold.unlock();
  const Time began = std::chrono::steady_clock::now();
  VersionInfo info{.step = writing_->step, .created = utcNow(), .moment = VersionMoment::step};
  const Result<VersionInfo> made =
      versions_->publish(std::move(info), {assembly->tensors(), assembly->values(), assembly->checksums()});
  spareSince_ = std::chrono::steady_clock::now();
  const std::chrono::duration<double> time = spareSince_ - began;
  spare_ = assembly->release();
  hold.lock();
  outcomes_.note(made, time.count(), "");
  writing_->end(made);
  writing_ = nullptr;
}

PublishStatus PartsIntake::status() const {
  PublishStatus out;
  versions_->fillStatus(out);
  out.from = publishFromName(PublishConfig::From::publishers);
  out.path = path_;
  out.receivedBytes = receivedBytes_;
  const std::lock_guard hold(mutex_);
  outcomes_.fillStatus(out);
  out.abandoned = abandoned_;
  const std::shared_ptr<Step>& step = current_ ? current_ : writing_;
  if (!step) return out;
  AssemblingStatus& assembling = out.assembling.emplace();
  assembling.step = step->step;
  assembling.worldSize = step->worldSize;
  assembling.missing = step->missing();
  assembling.missing.resize(std::min(assembling.missing.size(), kMissingMax));
  if (!step->assembly) return out;
  assembling.bytes = step->assembly->bytes();
  assembling.arrivedBytes = assembling.bytes - step->assembly->missing();
  return out;
}

std::vector<std::string> PartsIntake::takeAbandoned() {
  const std::lock_guard hold(mutex_);
  return std::exchange(abandonedLines_, {});
}

}  // namespace psd

#include "test/support/local_client.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include <kj/exception.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "common/os/host.h"
#include "common/os/random_id.h"
#include "common/types/stopwatch.h"
#include "test/support/local_session.h"
#include "trainer/client/coverage.h"

namespace psd::testing {

namespace {

using Role = LocalSession::Role;

template <class T>
class LocalPending final : public Pending<T>::Impl {
 public:
  explicit LocalPending(std::future<Result<T>> answer) : answer_(std::move(answer)) {}
  bool done() const override {
    return answer_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  Result<T> wait() override { return answer_.get(); }

 private:
  std::future<Result<T>> answer_;
};

template <class T>
Pending<T> pending(std::future<Result<T>> answer) {
  return Pending<T>(std::make_unique<LocalPending<T>>(std::move(answer)));
}

template <class T>
std::future<Result<T>> failed(const Error& error) {
  LocalAnswer<T> answer;
  auto future = answer.future();
  answer.refuse(error);
  return future;
}
struct LocalPing {
  Stopwatch took;
  std::future<Result<bool>> answer;
};

}  // namespace

template <class Work>
void LocalClient::onLoop(Work work) {
  // An exception means that the loop's thread has ended; LocalAnswer reports that to a thread that waits.
  const auto thrown = kj::runCatchingExceptions([&] { loop_->executor().executeSync(std::move(work)); });
  static_cast<void>(thrown);
}

template <class T, class Work>
std::future<Result<T>> LocalClient::start(Work work) {
  auto answer = std::make_shared<LocalAnswer<T>>();
  auto future = answer->future();
  const auto run = [this, answer = std::move(answer), work = std::move(work)]() mutable {
    if (session_->ended()) return answer->refuse(*session_->ended());
    session_->note(answer);
    kj::Promise<Result<T>> told = work(*session_);
    loop_->detach(told.then([answer](Result<T> value) { answer->give(std::move(value)); },
                            [answer](kj::Exception&& exception) {
                              answer->refuse({ErrorCode::internal, exception.getDescription().cStr()});
                            })
                      .attach(std::shared_ptr(session_)));
  };
  onLoop(std::move(run));
  return future;
}

/// A push whose slices were all sent.
class Sent final : public Pending<PushInfo>::Impl {
 public:
  Sent(std::vector<std::future<Result<bool>>> answers, std::shared_ptr<PushInfo> info, Stopwatch took)
      : answers_(std::move(answers)), info_(std::move(info)), took_(took) {}
  bool done() const override {
    return std::ranges::all_of(answers_, [](const auto& answer) {
      return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  }
  Result<PushInfo> wait() override {
    std::optional<Error> fault;
    for (auto& answer : answers_) {
      const Result<bool> sent = answer.get();
      if (!sent.ok() && !fault) fault = sent.error();
    }
    if (fault) return *fault;
    info_->seconds = took_.seconds();
    return *info_;
  }

 private:
  std::vector<std::future<Result<bool>>> answers_;
  const std::shared_ptr<PushInfo> info_;
  const Stopwatch took_;
};

/// A push in flight; its slices are sent as they are covered, and its rows when it is finished.
class LocalClient::Sending final : public PartialPush {
 public:
  Sending(LocalClient& client, Step step, ConstArenaValues gradient, GradientInfo behind,
          const std::vector<Version>& basis, const RowBatch* rows)
      : client_(client),
        gradient_(gradient.floats()),
        rows_(rows),
        head_{.step = step,
              .samples = behind.samples,
              .localSteps = behind.localSteps,
              .parts = client.blockCount()},
        basis_(basis),
        coverage_(client.slices_) {
    info_->versions.resize(client.blockCount());
    info_->outcome = PushOutcome::received;
    basis_.resize(client.blockCount());
  }
  ~Sending() override {
    for (auto& answer : answers_) answer.wait();
  }

  void ready(uint64_t begin, uint64_t count) override {
    for (const size_t index : coverage_.add(begin, count)) send(client_.slices_[index]);
  }
  Pending<PushInfo> finish() override {
    for (const RowSlice& slice : client_.cut(rows_)) send(slice);
    return Pending<PushInfo>(std::make_unique<Sent>(std::exchange(answers_, {}), info_, took_));
  }

 private:
  void send(const Slice& slice) {
    SliceHead head = head_;
    head.shard = slice.shard.value;
    head.offset = slice.offset;
    head.count = slice.count;
    head.basis = basis_[head.shard];
    head.total = slice.total;
    const auto values = gradient_.subspan(slice.arena, slice.count);
    begin([info = info_, head, values](LocalSession& session) { return session.push(head, values, *info); });
  }

  void send(const RowSlice& slice) {
    SliceHead head = head_;
    head.basis = basis_[slice.shard.value];
    begin([info = info_, head, slice, rows = rows_](LocalSession& session) {
      return session.push(head, slice, rows, *info);
    });
  }

  template <class Push>
  void begin(Push push) {
    answers_.push_back(client_.start<bool>([info = info_, push = std::move(push)](LocalSession& session) {
      return push(session).then([info](const Status& status) {
        return status.ok() ? Result<bool>(true) : Result<bool>(status.error());
      });
    }));
  }

  LocalClient& client_;
  const std::span<const float> gradient_;
  const RowBatch* const rows_;
  const SliceHead head_;
  std::vector<Version> basis_;
  Coverage coverage_;
  const Stopwatch took_;
  const std::shared_ptr<PushInfo> info_ = std::make_shared<PushInfo>();  // written on the loop
  std::vector<std::future<Result<bool>>> answers_;
};

LocalClient::LocalClient(std::shared_ptr<EventLoop> loop, ControlLoop& control, uint64_t sliceElements)
    : loop_(std::move(loop)),
      session_(std::make_shared<LocalSession>(loop_, control)),
      sliceElements_(sliceElements) {}

LocalClient::~LocalClient() {
  onLoop([this] { std::exchange(session_, nullptr)->close(); });
}

Status LocalClient::checkSize(size_t elements) const {
  const uint64_t expected = plan_.totalElements();
  if (elements == expected && blockCount() > 0) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} elements; the model's layout has {}", elements, expected)};
}

void LocalClient::learnPlan() {
  onLoop([this] {
    plan_ = session_->model().store->plan();
    sliceElements_ = std::min(sliceElements_, session_->sliceElementsMax());
    slices_ = cutIntoSlices(plan_, sliceElements_);
    const ParameterStore& store = *session_->model().store;
    tables_ = store.model().tables;
    rowShards_.clear();
    for (size_t i = 0; i < store.rowShardCount(); i++) {
      const RowShard& shard = store.rowShard(i);
      const HashRange hashes = shard.hashes();
      rowShards_.push_back({shard.id(), hashes.first, hashes.last, {}});
      for (const RowShard::Table& table : shard.tables()) rowShards_.back().tables.push_back(table.index);
    }
  });
}

uint32_t LocalClient::blockCount() const {
  return static_cast<uint32_t>(plan_.shards.size() + rowShards_.size());
}

std::vector<RowSlice> LocalClient::cut(const RowBatch* rows) const {
  return rows ? cutRows(*rows, rowShards_, sliceElements_) : noRows(rowShards_);
}

Result<JoinInfo> LocalClient::join(const Membership& membership, const ModelSpec& model,
                                   const std::function<ConstArenaValues()>& initialValues) {
  JoinService::Request request{.candidate = {.rank = membership.rank,
                                             .worldSize = membership.worldSize,
                                             .host = hostName(),
                                             .pid = static_cast<uint32_t>(getpid()),
                                             .incarnation = drawId(),
                                             .anyRank = membership.anyRank,
                                             .codec = "none",
                                             .pullCodec = "none"},
                               .held = {},
                               .model = model};
  auto joined = start<JoinInfo>([request = std::move(request)](LocalSession& session) mutable {
    return session.join(std::move(request));
  });
  PSD_ASSIGN_OR_RETURN(JoinInfo info, joined.get());
  learnPlan();
  auto asked = start<Role>([](LocalSession& session) -> kj::Promise<Result<Role>> {
    return session.role() == Role::wait ? session.awaitModel() : Result<Role>(session.role());
  });
  PSD_ASSIGN_OR_RETURN(const Role role, asked.get());
  if (role != Role::initialize) return info;
  const std::span<const float> values = initialValues().floats();
  PSD_RETURN_IF_ERROR(checkSize(values.size()));
  auto brought = start<bool>([this, values](LocalSession& session) {
    return session.bringValues(slices_, values).then([](const Status& status) {
      return status.ok() ? Result<bool>(true) : Result<bool>(status.error());
    });
  });
  PSD_RETURN_IF_ERROR(brought.get().status());
  info.initializedModel = true;
  return info;
}

Result<JoinInfo> LocalClient::observe(const ModelSpec& model) {
  auto observed = start<JoinInfo>([model](LocalSession& session) { return session.observe(model); });
  PSD_ASSIGN_OR_RETURN(JoinInfo info, observed.get());
  learnPlan();
  return info;
}

Pending<PullInfo> LocalClient::pull(ArenaValues destination, RowBatch* rows) {
  const bool rowsOnly = destination.empty() && rows != nullptr;
  if (Status size = checkSize(destination.size()); !size.ok() && !rowsOnly) {
    return pending(failed<PullInfo>(size.error()));
  }
  return pending(start<PullInfo>([this, destination, rows](LocalSession& session) {
    return session.pull(slices_, destination.floats(), cut(rows), rows);
  }));
}

Pending<PushInfo> LocalClient::push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                    const std::vector<Version>& basis, const RowBatch* rows) {
  if (Status size = checkSize(gradient.size()); !size.ok()) return pending(failed<PushInfo>(size.error()));
  Sending sending(*this, step, gradient, behind, basis, rows);
  sending.ready(0, gradient.size());
  return sending.finish();
}

std::unique_ptr<PartialPush> LocalClient::beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                                    const std::vector<Version>& basis, const RowBatch* rows) {
  return std::make_unique<Sending>(*this, step, gradient, behind, basis, rows);
}

Result<AssignedSamples> LocalClient::takeSamples(const SamplesRequest& request) {
  return start<AssignedSamples>([request](LocalSession& session) { return session.takeSamples(request); })
      .get();
}

Result<PingInfo> LocalClient::ping(uint64_t calls, uint32_t outstanding) {
  PingInfo info;
  const Stopwatch elapsed;
  std::deque<LocalPing> waiting;
  for (uint64_t made = 0; made < calls || !waiting.empty();) {
    if (made < calls && waiting.size() < outstanding) {
      waiting.push_back({Stopwatch(), start<bool>([](LocalSession&) -> kj::Promise<Result<bool>> {
                           return Result<bool>(true);
                         })});
      made++;
      continue;
    }
    PSD_RETURN_IF_ERROR(waiting.front().answer.get().status());
    info.seconds.push_back(waiting.front().took.seconds());
    waiting.pop_front();
  }
  info.elapsed = elapsed.seconds();
  return info;
}

Status LocalClient::leave() {
  auto left = start<bool>([](LocalSession& session) {
    return session.leave().then(
        [](const Status& status) { return status.ok() ? Result<bool>(true) : Result<bool>(status.error()); });
  });
  return left.get().status();
}

void LocalClient::interrupt() {
  onLoop([this] {
    loop_->detach(session_->leave().ignoreResult().attach(std::shared_ptr(session_)));
    session_->end({ErrorCode::interrupted, "the trainer was interrupted"});
  });
}

uint64_t LocalClient::bytesPulled() const { return session_->bytesPulled(); }
uint64_t LocalClient::bytesPushed() const { return session_->bytesPushed(); }

}  // namespace psd::testing

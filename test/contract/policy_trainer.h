#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/policy/policy_list.h"
#include "server/policy/round_moments.h"
#include "server/store/cpu/racy_loops.h"
#include "server/store/parameter_store.h"
#include "test/support/async_backend.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/random.h"

namespace psd::testing {

/// A model on a device and a policy over it. As thread-safe as they are.
struct ServedStore {
  /// `json`: the policy's options. `recorded`: PolicyScope::recorded.
  ServedStore(std::shared_ptr<Backend> device, const PolicyEntry& entry, const Optimizer& optimizer,
              uint64_t elements, uint32_t shards, const char* json = "{}", bool recorded = false)
      : ServedStore(std::move(device), entry, optimizer, ModelSpec{"", {{"w", DType::f32, {elements}}}},
                    shards, json, recorded) {}
  ServedStore(std::shared_ptr<Backend> device, const PolicyEntry& entry, const Optimizer& optimizer,
              ModelSpec model, uint32_t shards, const char* json = "{}", bool recorded = false,
              std::shared_ptr<RoundMoments> moments = nullptr) {
    auto created = ParameterStore::create(std::move(model), shards, {std::move(device)}, optimizer);
    PSD_REQUIRE_OK(created);
    store = std::move(*created);
    ObjectReader options(nlohmann::ordered_json::parse(json));
    PolicyScope scope{*store, 0, makeGradientPool(uint64_t{1} << 30)};
    scope.recorded = recorded;
    scope.moments = std::move(moments);
    policy = entry.read(options).make(scope);
    PSD_REQUIRE_OK(options.finish());
  }
  Shard& shard(size_t index) { return store->shard(index); }

  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<UpdatePolicy> policy;
};

/// The entry of the list with this type, which must exist.
inline const PolicyEntry& entryOf(std::string_view type) {
  const auto entry = std::find_if(kPolicyList.begin(), kPolicyList.end(),
                                  [&](const PolicyEntry& one) { return one.type == type; });
  REQUIRE(entry != kPolicyList.end());
  return *entry;
}

/// Hogwild as used when updates are recorded.
inline PolicyPlan readRecordedHogwild(ConfigReader options) {
  PolicyPlan plan = Hogwild::read(options);
  plan.make = [make = plan.make](const PolicyScope& scope) {
    PolicyScope recorded = scope;
    recorded.recorded = true;
    return make(recorded);
  };
  return plan;
}

/// The policies under which no trainer waits for another one's gradient.
inline std::vector<PolicyEntry> asynchronousPolicies() {
  std::vector<PolicyEntry> found;
  for (const PolicyEntry& entry : kPolicyList) {
    if (!entry.traits.rounds) found.push_back(entry);
  }
  found.push_back({"hogwild", "recorded", entryOf("hogwild").traits, readRecordedHogwild});
  return found;
}

/// A run of elements of a shard.
struct Piece {
  uint64_t offset = 0, count = 0;
};

inline std::vector<Piece> wholeShard(const Shard& shard) { return {{0, shard.range().count}}; }

/// The shard in pieces of random sizes on the grain, in random order.
inline std::vector<Piece> randomPieces(const Shard& shard, Random& random) {
  std::vector<Piece> pieces;
  const uint64_t whole = shard.range().count, most = random.between(1, whole / kLayoutGrainElements + 1);
  for (uint64_t offset = 0; offset < whole;) {
    const uint64_t count = std::min(random.between(1, most) * kLayoutGrainElements, whole - offset);
    pieces.push_back({offset, count});
    offset += count;
  }
  std::shuffle(pieces.begin(), pieces.end(), random.engine());
  return pieces;
}

/// One gradient in transit into one shard, as a trainer's session keeps it. Owned by one thread; outlives its
/// promises.
class Update {
 public:
  Update(ServedStore& served, Lanes& lanes, size_t shard, Version basis, std::span<const float> gradient,
         TrainerRef trainer = {}, Step step = {})
      : policy_(*served.policy),
        shard_(served.shard(shard)),
        lane_(*lanes[shard_.device()]),
        gradient_(gradient.begin(), gradient.end()) {
    push_.basis = basis;
    push_.trainer = trainer;
    push_.step = step;
    push_.samples = 1;
    push_.total = shard_.range().count;
  }

  /// Continues without being awaited, like a call.
  kj::Promise<Result<PushAnswer>> send(Piece piece) {
    push_.arrived.add(piece.offset, piece.count);
    auto answer = policy_.push(shard_, lane_, push_, piece.offset,
                               std::span(gradient_).subspan(piece.offset, piece.count));
    KJ_IF_MAYBE (later, push_.pendingAnswer) {
      answer = answer.then([later = kj::mv(*later)](Result<PushAnswer>) mutable { return kj::mv(later); });
      push_.pendingAnswer = nullptr;
    }
    return answer.eagerlyEvaluate(nullptr);
  }

  void samples(uint32_t count) { push_.samples = count; }
  void localSteps(uint32_t count) { push_.localSteps = count; }
  void leadRound(uint64_t number) { push_.leadRound = number; }
  void hyperparameters(std::shared_ptr<const Hyperparameters> carried) {
    push_.hyperparameters = std::move(carried);
  }

 private:
  UpdatePolicy& policy_;
  Shard& shard_;
  Lane& lane_;
  const std::vector<float> gradient_;
  ShardPush push_;
};

/// The combined answers to one update.
struct Pushed {
  size_t applied = 0;  ///< answers that say so; must be one
  PushAnswer last;     ///< the one that says so
  bool failed = false;
};

/// The assembled result of a pull.
struct Pulled {
  std::vector<float> values;
  std::vector<Version> versions;  ///< of each piece
  bool failed = false;
};

/// One joined trainer with its own loop and lanes. No assertions: it works on any thread. Owned by one
/// thread.
class PolicyTrainer {
 public:
  PolicyTrainer(ServedStore& served, TestLoop& loop, Rank rank = {})
      : served_(served), loop_(loop), lanes_(served.store->makeLanes()), trainer_{{nextSession()}, rank} {
    loop_.wait(served_.policy->join(trainer_));
    // Alone it is in a group immediately, and may push.
    if (served_.policy->averaging()) group_ = formAveragingGroup(0).eagerlyEvaluate(nullptr);
  }
  ~PolicyTrainer() { leave(); }
  PolicyTrainer(const PolicyTrainer&) = delete;
  PolicyTrainer& operator=(const PolicyTrainer&) = delete;

  Lanes& lanes() { return lanes_; }
  const TrainerRef& ref() const { return trainer_; }
  /// Requests the next averaging group.
  kj::Promise<Result<FormedGroup>> formAveragingGroup(uint64_t after) {
    return served_.policy->averaging()->formAveragingGroup(trainer_.session, after,
                                                           {trainer_.rank, "host", 1});
  }
  void leave() {
    if (!left_) loop_.wait(served_.policy->leave(trainer_.session));
    left_ = true;
  }
  /// One gradient for all shards, computed from `basis`; returns the last one's answer, once all are
  /// answered. `rate`: of SGD, as the push's hyperparameters.
  kj::Promise<Result<PushAnswer>> startAll(Version basis, std::span<const float> gradient,
                                           uint32_t samples = 1, std::optional<double> rate = {},
                                           uint64_t leadRound = 0) {
    const Step step{++steps_};
    const size_t shards = served_.store->shardCount();
    auto earlier = kj::heapArrayBuilder<kj::Promise<Result<PushAnswer>>>(shards - 1);
    kj::Promise<Result<PushAnswer>> last = nullptr;
    for (size_t s = 0; s < shards; s++) {
      const ShardRange& range = served_.shard(s).range();
      updates_.push_back(std::make_unique<Update>(
          served_, lanes_, s, basis, gradient.subspan(range.begin, range.count), trainer_, step));
      updates_.back()->samples(samples);
      updates_.back()->leadRound(leadRound);
      if (rate) {
        updates_.back()->hyperparameters(
            std::make_shared<const Hyperparameters>(Hyperparameters{{{*rate, 0, 0, 0}}, {{range.count, 0}}}));
      }
      last = updates_.back()->send({0, range.count});
      if (s + 1 < shards) earlier.add(kj::mv(last));
    }
    return kj::joinPromises(earlier.finish())
        .then([last = kj::mv(last)](kj::Array<Result<PushAnswer>>) mutable { return kj::mv(last); });
  }
  Result<PushAnswer> pushAll(Version basis, std::span<const float> gradient, uint32_t samples = 1) {
    return loop_.wait(startAll(basis, gradient, samples));
  }
  /// The whole arena.
  std::vector<float> pullAll() {
    std::vector<float> values;
    for (size_t s = 0; s < served_.store->shardCount(); s++) {
      const Pulled pulled = pull(s, wholeShard(served_.shard(s)));
      values.insert(values.end(), pulled.values.begin(), pulled.values.end());
    }
    return values;
  }

  /// Sends the pieces in sequence, or all before the first answer.
  Pushed push(size_t shard, Version basis, std::span<const float> gradient, const std::vector<Piece>& pieces,
              bool together = false) {
    Update update(served_, lanes_, shard, basis, gradient, trainer_, Step{++steps_});
    Pushed pushed;
    std::vector<kj::Promise<Result<PushAnswer>>> answers;
    for (Piece piece : pieces) {
      answers.push_back(update.send(piece));
      if (!together) note(loop_.wait(kj::mv(answers.back())), pushed);
    }
    for (auto& answer : answers) {
      if (together) note(loop_.wait(kj::mv(answer)), pushed);
    }
    return pushed;
  }

  Pulled pull(size_t shard, const std::vector<Piece>& pieces) {
    Shard& from = served_.shard(shard);
    ShardPull state;
    state.trainer = trainer_;
    state.pull = ++pulls_;
    Pulled pulled;
    pulled.values.resize(from.range().count);
    for (Piece piece : pieces) {
      auto answer =
          loop_.wait(served_.policy->pull(from, *lanes_[from.device()], state, piece.offset, piece.count));
      pulled.failed = pulled.failed || !answer.ok() || answer->view.values.size() != piece.count;
      if (pulled.failed) break;
      pulled.versions.push_back(answer->version);
      // The view may be live: copied like its sender does.
      racyCopy(piece.count, answer->view.values.data(), pulled.values.data() + piece.offset);
    }
    return pulled;
  }

 private:
  static uint64_t nextSession() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
  static void note(const Result<PushAnswer>& answer, Pushed& pushed) {
    if (!answer.ok()) {
      pushed.failed = true;
    } else if (answer->applied()) {
      pushed.applied++;
      pushed.last = *answer;
    }
  }

  ServedStore& served_;
  TestLoop& loop_;
  Lanes lanes_;
  const TrainerRef trainer_;
  uint64_t pulls_ = 0;
  uint64_t steps_ = 0;
  bool left_ = false;
  kj::Promise<Result<FormedGroup>> group_ = nullptr;  // that it waits for, if trainers average
  std::vector<std::unique_ptr<Update>> updates_;      // of startAll(), whose promises need them
};

/// The first element in which two arrays differ; nothing if they are equal bit for bit.
inline std::optional<size_t> firstDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::min(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return i;
  }
  return std::nullopt;
}

/// Whether all values are `expected`.
inline bool allAre(std::span<const float> values, uint64_t expected) {
  return std::all_of(values.begin(), values.end(),
                     [&](float value) { return value == static_cast<float>(expected); });
}

/// w ← w − g: with a gradient of −1, a weight counts its updates.
inline Optimizer subtracting() {
  Optimizer optimizer;
  optimizer.fullLearningRate = 1;
  return optimizer;
}

}  // namespace psd::testing

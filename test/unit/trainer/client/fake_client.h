#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"

namespace psd::testing {

/// A Pending that is done from the start.
template <class T>
Pending<T> ready(Result<T> result) {
  class Ready : public Pending<T>::Impl {
   public:
    explicit Ready(Result<T> result) : result_(std::move(result)) {}
    bool done() const override { return true; }
    Result<T> wait() override { return std::move(result_); }

   private:
    Result<T> result_;
  };
  return Pending<T>(std::make_unique<Ready>(std::move(result)));
}

/// A Pending that is done only when it is waited for; counts itself in `open` until then.
template <class T>
Pending<T> slow(Result<T> result, int& open) {
  class Slow : public Pending<T>::Impl {
   public:
    Slow(Result<T> result, int& open) : result_(std::move(result)), open_(open) { ++open_; }
    bool done() const override { return false; }
    Result<T> wait() override {
      --open_;
      return std::move(result_);
    }

   private:
    Result<T> result_;
    int& open_;
  };
  return Pending<T>(std::make_unique<Slow>(std::move(result), open));
}

/// The first `ends` waits for `call` are ended.
template <class T>
Pending<T> endedFirst(Pending<T> call, int& ends) {
  class Ended : public Pending<T>::Impl {
   public:
    Ended(Pending<T> call, int& ends) : call_(std::move(call)), ends_(ends) {}
    bool done() const override { return ends_ == 0 && call_.done(); }
    Result<T> wait() override {
      if (ends_ == 0) return call_.wait();
      ends_--;
      return Error{ErrorCode::interrupted, "ended"};
    }

   private:
    Pending<T> call_;
    int& ends_;
  };
  return Pending<T>(std::make_unique<Ended>(std::move(call), ends));
}

/// A push in parts that pushes the whole when it is finished.
class LatePush : public PartialPush {
 public:
  explicit LatePush(std::function<Pending<PushInfo>()> push) : push_(std::move(push)) {}
  void ready(uint64_t, uint64_t) override {}
  Pending<PushInfo> finish() override { return push_(); }

 private:
  std::function<Pending<PushInfo>()> push_;
};

/// A daemon with one shard and plain SGD, in this process. Shared by the FakeClients of one thread.
struct FakeDaemon {
  float learningRate = 0.1f;
  std::vector<float> values;  ///< empty until the first trainer has joined
  uint64_t version = 0;
  uint64_t modelSignature = 0;
  std::vector<TableSpec> tables;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows;  ///< that were pushed, by table and id
  std::vector<uint64_t> steps;                                       ///< of every push, in order
  std::vector<uint32_t> samples;                                     ///< of every push, in order
  std::vector<uint32_t> localSteps;                                  ///< of every push, in order
  std::deque<std::optional<RoundDue>> dues;  ///< results of the next calls of roundDue(); nothing: not done
                                             ///< yet
  std::vector<uint64_t> staleness;           ///< of every push, in order
  /// Outcomes of the next pushes; of later ones: applied. While one is dropped, other trainers make a
  /// version.
  std::deque<PushOutcome> outcomes;
  int left = 0;
  LocalSteps local;             ///< sent to trainers
  Rank freeRank;                ///< for trainers without a rank
  uint64_t failPushAtStep = 0;  ///< 0: never
  Error failure{};
  int endedWaits = 0;   ///< the number of the next waits for pulls and pushes that are ended
  bool isSlow = false;  ///< no call is done before it is waited for
  int openPulls = 0;    ///< of a slow daemon: not waited for yet
  int openPushes = 0;
  int openDues = 0;
  int mostOpenPushes = 0;
  std::vector<const float*> destinations;  ///< of every pull, in order
  std::vector<uint64_t> pulledRows;        ///< of every pull, in order

  /// The current value of a row.
  std::vector<float> row(uint32_t table, uint64_t id) const {
    const auto known = rows.find({table, id});
    if (known != rows.end()) return known->second;
    std::vector<float> values(tables[table].dim);
    tables[table].initial.fill(id, values);
    return values;
  }
  std::deque<AssignedSamples> assignment;  ///< the remaining assignments; after them the run is finished
  std::vector<SamplesRequest> requests;    ///< in order
};

/// Owned by one thread.
class FakeClient : public Client, public Rounds, public SampleSource {
 public:
  explicit FakeClient(FakeDaemon& daemon) : daemon_(daemon) {}

  Result<JoinInfo> join(const Membership&, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override {
    JoinInfo info{false, "fake", "cpu", 1, "0"};
    if (daemon_.values.empty()) {
      const std::span<const float> initial = initialValues().floats();
      daemon_.values.assign(initial.begin(), initial.end());
      daemon_.modelSignature = model.signature();
      daemon_.tables = model.tables;
      info.initializedModel = true;
    }
    info.local = daemon_.local;
    info.rank = daemon_.freeRank;
    info.worldSize = daemon_.freeRank.value + 1;
    if (daemon_.modelSignature != model.signature()) {
      return Error{ErrorCode::modelMismatch, "the models differ"};
    }
    return info;
  }

  Result<JoinInfo> observe(const ModelSpec&) override {
    if (daemon_.values.empty()) return Error{ErrorCode::notReady, "the model has no values yet"};
    return JoinInfo{false, "fake", "cpu", 1, "0"};
  }

  RowBatch makeRowBatch() const override { return RowBatch(daemon_.tables); }

  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
    std::copy(daemon_.values.begin(), daemon_.values.end(), destination.floats().begin());
    daemon_.destinations.push_back(destination.floats().data());
    daemon_.pulledRows.push_back(rows ? rows->rowCount() : 0);
    PullInfo info{{Version{daemon_.version}}, 0.0};
    for (uint32_t table = 0; rows && table < rows->tableCount(); ++table) {
      for (size_t i = 0; i < rows->rowCount(table); ++i) {
        const uint64_t id = rows->ids(table)[i];
        info.knownRows += daemon_.rows.contains({table, id});
        const std::vector<float> values = daemon_.row(table, id);
        std::ranges::copy(values, rows->rows(table).begin() + static_cast<ptrdiff_t>(i * values.size()));
      }
    }
    return endedFirst(daemon_.isSlow ? slow<PullInfo>(info, daemon_.openPulls) : ready<PullInfo>(info),
                      daemon_.endedWaits);
  }

  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows) override {
    if (step.value == daemon_.failPushAtStep) return answer(daemon_.failure);
    if (!isFinite(gradient.floats())) return answer(Error{ErrorCode::nonFinite, "refused"});
    for (uint32_t table = 0; rows && table < rows->tableCount(); ++table) {
      if (!isFinite(rows->gradients(table))) return answer(Error{ErrorCode::nonFinite, "refused"});
    }
    daemon_.steps.push_back(step.value);
    daemon_.samples.push_back(behind.samples);
    daemon_.localSteps.push_back(behind.localSteps);
    const uint64_t staleness = daemon_.version++ - basis.at(0).value;
    daemon_.staleness.push_back(staleness);
    PushOutcome outcome = PushOutcome::applied;
    if (!daemon_.outcomes.empty()) {
      outcome = daemon_.outcomes.front();
      daemon_.outcomes.pop_front();
    }
    if (outcome == PushOutcome::applied) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        daemon_.values[i] -= daemon_.learningRate * gradient.floats()[i];
      }
      if (rows) apply(*rows);
    }
    return answer(PushInfo{{Version{daemon_.version}}, staleness, 0.0, outcome});
  }

  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis, const RowBatch* rows) override {
    return std::make_unique<LatePush>([=, this] { return push(step, gradient, behind, basis, rows); });
  }

  Rounds* rounds() override { return this; }
  SampleSource* sampleSource() override { return this; }
  Pending<RoundDue> roundDue(Version) override {
    std::optional<RoundDue> due;
    if (!daemon_.dues.empty()) {
      due = daemon_.dues.front();
      daemon_.dues.pop_front();
    }
    if (due) return ready<RoundDue>(*due);
    return slow<RoundDue>(RoundDue::closed, daemon_.openDues);
  }

  void interrupt() override {}
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override {
    daemon_.requests.push_back(request);
    AssignedSamples assigned{.what = AssignedSamples::What::finished};
    if (daemon_.assignment.empty()) return assigned;
    assigned = daemon_.assignment.front();
    daemon_.assignment.pop_front();
    return assigned;
  }

  Result<PingInfo> ping(uint64_t, uint32_t) override { return PingInfo{}; }

  Status leave() override {
    ++daemon_.left;
    return {};
  }
  uint64_t bytesPulled() const override { return 0; }
  uint64_t bytesPushed() const override { return 0; }

 private:
  Pending<PushInfo> answer(Result<PushInfo> result) {
    if (!daemon_.isSlow) return endedFirst(ready<PushInfo>(std::move(result)), daemon_.endedWaits);
    auto pending = slow<PushInfo>(std::move(result), daemon_.openPushes);
    daemon_.mostOpenPushes = std::max(daemon_.mostOpenPushes, daemon_.openPushes);
    return pending;
  }

  static bool isFinite(std::span<const float> values) {
    return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  }

  void apply(const RowBatch& rows) {
    for (uint32_t table = 0; table < rows.tableCount(); ++table) {
      for (size_t i = 0; i < rows.rowCount(table); ++i) {
        std::vector<float> row = daemon_.row(table, rows.ids(table)[i]);
        for (size_t d = 0; d < row.size(); ++d) {
          row[d] -= daemon_.learningRate * rows.gradients(table)[i * row.size() + d];
        }
        daemon_.rows[{table, rows.ids(table)[i]}] = std::move(row);
      }
    }
  }

  FakeDaemon& daemon_;
};

}  // namespace psd::testing

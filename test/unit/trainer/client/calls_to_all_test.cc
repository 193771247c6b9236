// The combined result of one call to several daemons.

#include "trainer/client/calls_to_all.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"

namespace psd::client_calls_to_all_test {
namespace {

/// A daemon's report of its round, once `dues` is set.
class PendingDue final : public Pending<RoundDue>::Impl {
 public:
  explicit PendingDue(std::shared_ptr<std::optional<Result<RoundDue>>> dues) : due_(std::move(dues)) {}
  bool done() const override { return due_->has_value(); }
  Result<RoundDue> wait() override { return **due_; }

 private:
  const std::shared_ptr<std::optional<Result<RoundDue>>> due_;
};

/// Three daemons that are asked.
struct AskedDaemons {
  std::vector<std::shared_ptr<std::optional<Result<RoundDue>>>> dues;
  std::optional<FirstDue> all;

  AskedDaemons() {
    std::vector<Pending<RoundDue>> parts;
    for (int i = 0; i < 3; i++) {
      dues.push_back(std::make_shared<std::optional<Result<RoundDue>>>());
      parts.emplace_back(std::make_unique<PendingDue>(dues.back()));
    }
    all.emplace(std::move(parts));
  }
};

const Result<RoundDue> kLost(ErrorCode::unavailable, "gone");

TEST_CASE("of several daemons the first report of a round counts, and the gravest outcome") {
  AskedDaemons asked;
  CHECK_FALSE(asked.all->done());
  *asked.dues[2] = kLost;
  CHECK(asked.all->done());
  CHECK(asked.all->wait().error().code == ErrorCode::unavailable);
  *asked.dues[1] = RoundDue::closing;
  CHECK(*asked.all->wait() == RoundDue::closing);
  *asked.dues[0] = RoundDue::closed;
  CHECK(*asked.all->wait() == RoundDue::closed);
  *asked.dues[1] = kLost;
  CHECK(*asked.all->wait() == RoundDue::closed);
}

struct Daemons final : CalledDaemons {
  const ModelPartition& partitionOf(size_t) const override { return partition; }
  CombinedVersions versions() const override { return CombinedVersions({{1, 0}, {1, 0}}); }
  Error failed(size_t, const Error& error) override {
    hasEnded = hasEnded || error.code == ErrorCode::unavailable;
    return error;
  }
  bool ended() const override { return hasEnded; }
  ModelPartition partition;
  bool hasEnded = false;
};

TEST_CASE("a call to several daemons whose wait is ended keeps the answers that it has") {
  Daemons daemons;
  int ended = 1, none = 0;
  const auto answer = [](uint64_t bytes, int& ends) {
    return testing::endedFirst(testing::ready<PullInfo>(PullInfo{.versions = {Version{1}}, .bytes = bytes}),
                               ends);
  };
  CombinedAnswer<PullInfo>::Parts parts;
  parts.push_back({0, answer(3, none)});
  parts.push_back({1, answer(4, ended)});
  CombinedAnswer<PullInfo> call(daemons, std::move(parts));
  CHECK(call.wait().error().code == ErrorCode::interrupted);
  const auto pulled = call.wait();
  PSD_REQUIRE_OK(pulled);
  CHECK(pulled->bytes == 7);
  CHECK(pulled->versions == std::vector<Version>{Version{1}, Version{1}});
}

TEST_CASE("a daemon that is lost is the error of a call, which ends the others' parts of it") {
  Daemons daemons;
  CombinedAnswer<PullInfo>::Parts parts;
  parts.push_back({0, testing::ready<PullInfo>(Error{ErrorCode::unavailable, "gone"})});
  parts.push_back(
      {1, testing::ready<PullInfo>(Error{ErrorCode::interrupted, "this trainer was interrupted"})});
  CombinedAnswer<PullInfo> call(daemons, std::move(parts));
  CHECK(call.wait().error().code == ErrorCode::unavailable);
}

}  // namespace
}  // namespace psd::client_calls_to_all_test

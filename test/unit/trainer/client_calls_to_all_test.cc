// The combined result of one call to several daemons.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "test/support/catch.h"
#include "trainer/client/calls_to_all.h"

namespace psd::client_calls_to_all_test {
namespace {

/// A daemon's report of its round, once `told` is set.
class Told final : public Pending<RoundDue>::Impl {
 public:
  explicit Told(std::shared_ptr<std::optional<Result<RoundDue>>> told) : told_(std::move(told)) {}
  bool done() const override { return told_->has_value(); }
  Result<RoundDue> wait() override { return **told_; }

 private:
  const std::shared_ptr<std::optional<Result<RoundDue>>> told_;
};

/// Three daemons that are asked.
struct Asked {
  std::vector<std::shared_ptr<std::optional<Result<RoundDue>>>> told;
  std::optional<DueAtAny> all;

  Asked() {
    std::vector<Pending<RoundDue>> parts;
    for (int i = 0; i < 3; i++) {
      told.push_back(std::make_shared<std::optional<Result<RoundDue>>>());
      parts.emplace_back(std::make_unique<Told>(told.back()));
    }
    all.emplace(std::move(parts));
  }
};

const Result<RoundDue> kLost(ErrorCode::unavailable, "gone");

TEST_CASE("of several daemons the first report of a round counts, and the gravest outcome") {
  Asked asked;
  CHECK_FALSE(asked.all->done());
  *asked.told[2] = kLost;
  CHECK(asked.all->done());
  CHECK(asked.all->wait().error().code == ErrorCode::unavailable);
  *asked.told[1] = RoundDue::closing;
  CHECK(*asked.all->wait() == RoundDue::closing);
  *asked.told[0] = RoundDue::closed;
  CHECK(*asked.all->wait() == RoundDue::closed);
  *asked.told[1] = kLost;
  CHECK(*asked.all->wait() == RoundDue::closed);
}

}  // namespace
}  // namespace psd::client_calls_to_all_test

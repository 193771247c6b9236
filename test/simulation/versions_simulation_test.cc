#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "server/publish/version_ledger.h"
#include "test/simulation/schedules.h"

namespace psd::versions_simulation_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Random;
using testing::VirtualTime;

/// A daemon that publishes, removes, dies and restarts, and readers that lease versions, renew, release and
/// die. What is on the disk outlives the ledger: the files, and the leases as of the last index.
class VersionWorld {
 public:
  explicit VersionWorld(Random& random) : random_(random) {
    size_ = random_.between(1, 8);
    terms_ = {.keep = random_.between(1, 5),
              .bytes = size_ * random_.between(3, 9),
              .leases = static_cast<uint32_t>(random_.between(1, 6)),
              .leaseMax = seconds(random_.between(1, 20))};
    ledger_ = std::make_unique<VersionLedger>(terms_);
  }

  void run() {
    for (int i = 0; i < 200; i++) {
      time_.after(milliseconds(random_.between(0, 60'000)), [this] { step(); });
    }
    REQUIRE(time_.run(1'000, [this] { check(); }));
  }

  uint64_t published() const { return published_; }
  uint64_t granted() const { return granted_; }
  uint64_t removed() const { return removed_; }
  uint64_t restarts() const { return restarts_; }

 private:
  VersionLedger::Time now() const { return VersionLedger::Time(time_.now().time_since_epoch() + seconds(1)); }

  void step() {
    switch (random_.between(0, 9)) {
      case 0:
      case 1:
      case 2:
      case 3: return publish();
      case 4:
      case 5:
      case 6: return lease();
      case 7: return release();
      case 8: return prune();
      default: return restart();
    }
  }

  void publish() {
    ledger_->expire(now());
    const std::vector<uint64_t> surplus = ledger_->surplus(size_, now());
    const auto number = ledger_->begin(size_, now());
    REQUIRE(number.ok());  // no reader prevents a version
    for (const uint64_t each : surplus) remove(each);
    CHECK(*number > highest_);
    highest_ = *number;
    CHECK((files_.size() + 1) * size_ <= terms_.bytes);
    if (random_.oneIn(6)) return;  // the disk is full: no file
    files_.insert(*number);
    if (random_.oneIn(8)) return restart();  // it dies before the version is announced
    ledger_->commit(*number, size_);
    published_++;
    newestSeen_ = *number;
    prune();
  }

  void prune() {
    ledger_->expire(now());
    for (const uint64_t number : ledger_->surplus(0, now())) remove(number);
    index_ = ledger_->leasedUntil();
  }

  void remove(uint64_t number) {
    for (const auto& [id, lease] : promises_) {
      INFO("version " << number << ", lease " << id);
      CHECK((lease.number != number || lease.until <= now()));
    }
    CHECK(number != newestSeen_);
    ledger_->removed(number);
    files_.erase(number);
    removed_++;
  }

  void lease() {
    const std::vector<uint64_t> numbers = ledger_->numbers();
    if (numbers.empty()) return;
    const uint64_t id = random_.between(1, 8);
    const uint64_t number =
        random_.oneIn(10) ? highest_ + 1 : numbers[random_.between(0, numbers.size() - 1)];
    const auto granted =
        ledger_->lease(id, number, seconds(random_.between(1, terms_.leaseMax.count())), "r", now());
    if (!granted.ok()) return;
    CHECK(files_.contains(number));
    index_ = ledger_->leasedUntil();
    promises_[id] = *granted;
    granted_++;
  }

  void release() {
    const uint64_t id = random_.between(1, 8);
    ledger_->release(id);
    promises_.erase(id);
  }

  void restart() {
    ledger_ = std::make_unique<VersionLedger>(terms_);
    for (const uint64_t number : files_) {
      const auto held = index_.find(number);
      ledger_->restore(number, size_, held == index_.end() ? VersionLedger::Time::min() : held->second);
      newestSeen_ = number;
    }
    // An unfinished version leaves no trace, and its number was never seen.
    highest_ = files_.empty() ? 0 : *files_.rbegin();
    if (files_.empty()) promises_.clear();
    restarts_++;
  }

  void check() {
    CHECK(ledger_->newest() >= newestSeen_);
    newestSeen_ = ledger_->newest();
    CHECK(ledger_->bytes() <= terms_.bytes);
    for (const auto& [id, lease] : promises_) {
      if (lease.until > now()) CHECK(files_.contains(lease.number));
    }
  }

  Random& random_;
  VirtualTime time_;
  uint64_t size_ = 1;
  VersionLedger::Terms terms_;
  std::unique_ptr<VersionLedger> ledger_;
  std::set<uint64_t> files_;                           // on the disk
  std::map<uint64_t, VersionLedger::Time> index_;      // on the disk
  std::map<uint64_t, VersionLedger::Lease> promises_;  // granted to readers
  uint64_t highest_ = 0, newestSeen_ = 0;
  uint64_t published_ = 0, granted_ = 0, removed_ = 0, restarts_ = 0;
};

TEST_CASE("Versions in simulation: numbers rise, leased ones stay, readers prevent none") {
  uint64_t published = 0, granted = 0, removed = 0, restarts = 0;
  testing::runSchedules(10'000, [&](Random& random) {
    VersionWorld world(random);
    world.run();
    published += world.published();
    granted += world.granted();
    removed += world.removed();
    restarts += world.restarts();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(published > 100);
  CHECK(granted > 100);
  CHECK(removed > 100);
  CHECK(restarts > 100);
}

}  // namespace
}  // namespace psd::versions_simulation_test

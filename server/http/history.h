#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/status/daemon_status.h"

namespace psd {

/// What a daemon did, for charts: points of the last ten minutes, one a second, and of the last day, one a
/// minute, each the mean of its seconds. It takes some 130 KB, from the start on. Owned by one thread.
class History {
 public:
  /// The series, in the order of a point's values. Rates are per second.
  static constexpr std::array kSeries = {
      std::string_view("gradients"),   // per second
      std::string_view("samples"),     // per second, by the steps and batches of the trainers that are in
      std::string_view("updates"),     // per second
      std::string_view("pull_bytes"),  // per second
      std::string_view("push_bytes"),  // per second
      std::string_view("staleness_median"),  // of the gradients of this second, like the next four
      std::string_view("staleness_99"),      //
      std::string_view("apply_seconds_median"),
      std::string_view("apply_seconds_99"),
      std::string_view("trainers"),          // that are in
      std::string_view("trainers_waiting"),  // of them: that wait for something
      std::string_view("resident_bytes"),
      std::string_view("held_bytes"),  // what peers make the daemon hold
  };
  static constexpr size_t kSeconds = 600, kMinutes = 1440, kPerMinute = 60;

  using Values = std::array<float, kSeries.size()>;  ///< NaN: there was nothing to measure
  struct Point {
    double time = 0;  ///< Unix time, in seconds
    Values values{};
  };

  /// Adds what happened since the call before; the first call only begins. `time`: of `status`, Unix time.
  void add(double time, const DaemonStatus& status);

  /// Nothing before the second add().
  const std::optional<Point>& newest() const { return newest_; }
  /// {"series": [names], "seconds": [[time, values …] …], "minutes": [the same], "reports": `reports`},
  /// oldest first; null for NaN. `reports` is JSON.
  std::string json(std::string_view reports) const;

 private:
  /// What the next point is measured against.
  struct Seen {
    double time = 0;
    MetricValues<Counter> counters;
    HistogramValue staleness, apply;
    struct Trainer {
      std::string process;
      uint64_t step = 0;
    };
    std::map<uint32_t, Trainer> trainers;  // by rank
  };
  static Values valuesOf(const Seen& before, const DaemonStatus& now, double seconds);
  static double samplesBetween(const Seen& before, const DaemonStatus& now);
  /// The newest so many points. Its memory is all there from the beginning.
  class Ring {
   public:
    explicit Ring(size_t capacity) { points_.reserve(capacity); }
    void add(const Point& point);
    std::string json() const;

   private:
    std::vector<Point> points_;  // its capacity is the ring's
    size_t begin_ = 0;           // of the oldest, once the ring is full
  };
  /// Adds a point to the minute that is under way, which may end with it.
  void addToMinute(const Point& point);

  Ring seconds_{kSeconds}, minutes_{kMinutes};
  std::optional<Seen> before_;
  std::optional<Point> newest_;
  std::array<double, kSeries.size()> sums_{};      // of the minute under way
  std::array<uint32_t, kSeries.size()> counts_{};  // of its seconds in which there was something
  size_t inMinute_ = 0;
};

/// A point as history.json has it: [time, values …].
std::string jsonOfPoint(const History::Point& point);

}  // namespace psd

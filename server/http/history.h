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

/// Time series of a daemon for charts: points of the last ten minutes, one per second, and of the last day,
/// one per minute, each the mean of its seconds. Takes some 130 KB, allocated at construction. Owned by one
/// thread.
class History {
 public:
  /// The series, in the order of a point's values. Rates are per second.
  static constexpr std::array kSeries = {
      std::string_view("gradients"),         // per second
      std::string_view("samples"),           // per second, from the steps and batches of the joined trainers
      std::string_view("updates"),           // per second
      std::string_view("pull_bytes"),        // per second
      std::string_view("push_bytes"),        // per second
      std::string_view("staleness_median"),  // of this second's gradients, like the next three
      std::string_view("staleness_99"),      //
      std::string_view("apply_seconds_median"),
      std::string_view("apply_seconds_99"),
      std::string_view("trainers"),          // joined trainers
      std::string_view("trainers_waiting"),  // of these, waiting or not connected
      std::string_view("resident_bytes"),
      std::string_view("held_bytes"),     // memory held for peers
      std::string_view("learning_rate"),  // the largest of all groups
  };
  static constexpr size_t kSeconds = 600, kMinutes = 1440, kPerMinute = 60;

  using Values = std::array<float, kSeries.size()>;  ///< NaN: no measurement
  struct Point {
    double time = 0;  ///< Unix time, in seconds
    Values values{};
  };

  /// Adds a point for the time since the previous call; the first call adds none. `time`: of `status`, Unix
  /// time.
  void add(double time, const DaemonStatus& status);

  /// Nothing until the second add().
  const std::optional<Point>& newest() const { return newest_; }
  /// {"series": [names], "seconds": [[time, values …] …], "minutes": [the same], "reports": `reports`},
  /// oldest first; null for NaN. `reports` is JSON.
  std::string json(std::string_view reports) const;

 private:
  /// The baseline of the next point.
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
  /// The newest `capacity` points. Allocates all of its memory at construction.
  class Ring {
   public:
    explicit Ring(size_t capacity) { points_.reserve(capacity); }
    void add(const Point& point);
    std::string json() const;

   private:
    std::vector<Point> points_;  // its capacity is the ring's
    size_t begin_ = 0;           // index of the oldest, once the ring is full
  };
  /// Adds a point to the current minute, which it may complete.
  void addToMinute(const Point& point);

  Ring seconds_{kSeconds}, minutes_{kMinutes};
  std::optional<Seen> before_;
  std::optional<Point> newest_;
  std::array<double, kSeries.size()> sums_{};      // of the current minute
  std::array<uint32_t, kSeries.size()> counts_{};  // measured seconds, per series
  size_t inMinute_ = 0;
};

/// A point as in history.json: [time, value …].
std::string jsonOfPoint(const History::Point& point);

}  // namespace psd

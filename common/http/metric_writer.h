#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace psd {

/// Writes metrics in Prometheus' text exposition format 0.0.4. Owned by one thread.
class MetricWriter {
 public:
  enum class Type { counter, gauge, histogram };
  using Label = std::pair<std::string_view, std::string_view>;
  using Labels = std::initializer_list<Label>;

  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  /// Starts a metric, whose values follow by sample(). `help` is a sentence without its period.
  void begin(std::string name, Type type, std::string_view help);
  template <class T>
  void sample(T value, Labels labels = {}, std::string_view suffix = "") {
    beginSample(labels, suffix);
    out_ += fmt::format(" {}\n", value);
  }
  template <class T>
  void one(std::string name, Type type, std::string_view help, T value) {
    begin(std::move(name), type, help);
    sample(value);
  }
  /// The samples of a histogram. `buckets`: objects with `atMost`, an optional upper bound, and `count`, of
  /// this bucket only (not cumulative); ascending, without a bound in the last. `label`: added to all
  /// samples; omitted if its name is empty.
  template <class Buckets>
  void histogram(const Buckets& buckets, double sum, Label label = {}) {
    uint64_t count = 0;
    for (const auto& bucket : buckets) {
      count += bucket.count;
      const std::string most = bound(bucket.atMost);
      sampleOf(count, label, "_bucket", {"le", most});
    }
    sampleOf(sum, label, "_sum");
    sampleOf(count, label, "_count");
  }

  const std::string& text() const { return out_; }

 private:
  /// Writes a sample with those labels that have a name.
  template <class T>
  void sampleOf(T value, Label one, std::string_view suffix, Label other = {}) {
    if (one.first.empty() && other.first.empty()) return sample(value, {}, suffix);
    if (one.first.empty()) return sample(value, {other}, suffix);
    if (other.first.empty()) return sample(value, {one}, suffix);
    sample(value, {one, other}, suffix);
  }
  static std::string bound(const std::optional<double>& atMost) {
    return atMost ? fmt::format("{:g}", *atMost) : "+Inf";
  }
  void beginSample(Labels labels, std::string_view suffix);

  std::string name_, out_;
};

}  // namespace psd

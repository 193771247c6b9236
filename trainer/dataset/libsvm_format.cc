#include <fmt/format.h>

#include "trainer/dataset/line_format.h"
#include "trainer/dataset/line_numbers.h"
#include "trainer/dataset/line_parser.h"

namespace psd {
namespace {

constexpr uint32_t kFeaturesMax = 65'536;  // of a line
constexpr char kComment = '#';             // where a feature could begin

bool isSpace(char c) { return c == ' ' || c == '\t'; }

/// Parses one line. Owned by one thread.
class LibsvmLine : public LineParser {
 public:
  explicit LibsvmLine(std::string_view line) : LineParser(line) {}

  /// Calls `take(id, value)` for each feature.
  template <class Take>
  bool parse(bool& label, const Take& take) {
    if (!readLabel(label)) return fails("the label is 1, +1, 0 or −1");
    for (uint32_t features = 0;; ++features) {
      const char* const space = at_;
      while (at_ < end_ && isSpace(*at_)) ++at_;
      if (at_ == end_ || *at_ == kComment) return true;
      if (at_ == space) return fails("features are separated by spaces");
      if (features == kFeaturesMax) return fails("a line has at most 65536 features");
      const char* c = at_;
      uint64_t id = 0;
      if (!readDigits(c, end_, id) || c == end_ || *c != ':') {
        return fails("a feature is id:value, with a whole number from 0 to 2^64 − 1 as id");
      }
      float value = 0;
      if (!readFloat(++c, end_, value)) return fails("the value is a finite number");
      at_ = c;
      take(id, value);
    }
  }

 private:
  bool readLabel(bool& label) {
    const char* c = at_;
    float value = 0;
    if (!readFloat(c, end_, value) || (value != 1 && value != 0 && value != -1)) return false;
    label = value == 1;
    at_ = c;
    return true;
  }
};

class LibsvmFormat : public LineFormat {
 public:
  bool check(std::string_view line, FeatureCounts& features, std::string& why) const override {
    uint32_t count = 0;
    bool label = false;
    LibsvmLine parser(line);
    if (parser.parse(label, [&](uint64_t, float) { ++count; })) {
      features.add(count);
      return true;
    }
    why = parser.why();
    return false;
  }

  std::vector<ColumnSpec> columns(const FeatureCounts& features) const override {
    const uint64_t width = features.least == features.most ? features.most : ColumnSpec::kAny;
    return columnsOf(width);
  }

  size_t fill(std::span<const std::string_view> lines, const FeatureCounts& features,
              Batch& batch) const override {
    const uint64_t width = features.least == features.most ? features.most : widest(lines, features.most);
    batch.reshape(columnsOf(width), lines.size());
    return fillRows(lines, width, batch);
  }

 private:
  /// At least the most features of one of the lines, and at most `most`. A pass over bytes that are then in
  /// the cache: a feature has a colon, and a comment may have some.
  static uint64_t widest(std::span<const std::string_view> lines, uint64_t most) {
    uint64_t width = 1;
    for (const std::string_view line : lines) {
      width = std::max(width, static_cast<uint64_t>(std::ranges::count(line, ':')));
    }
    return std::min(width, most);
  }

  static std::vector<ColumnSpec> columnsOf(uint64_t width) {
    return {{std::string(kSparseIds), ElementType::i64, {width}},
            {std::string(kSparseValues), ElementType::f32, {width}},
            {std::string(kSparseLabel), ElementType::i64, {}, 2}};
  }

  static size_t fillRows(std::span<const std::string_view> lines, uint64_t width, Batch& batch) {
    int64_t* const ids = batch.values<int64_t>(kSparseIds).data();
    float* const values = batch.values<float>(kSparseValues).data();
    int64_t* const labels = batch.values<int64_t>(kSparseLabel).data();
    for (size_t i = 0; i < lines.size(); ++i) {
      prefetchLine(lines, i + kPrefetchLines);
      uint64_t at = i * width;
      const uint64_t end = at + width;
      bool label = false, fits = true;
      const bool parsed = LibsvmLine(lines[i]).parse(label, [&](uint64_t id, float value) {
        if (at == end) {
          fits = false;
          return;
        }
        ids[at] = static_cast<int64_t>(id);
        values[at++] = value;
      });
      if (!parsed || !fits) return i;
      labels[i] = label ? 1 : 0;
      std::fill(ids + at, ids + end, 0);
      std::fill(values + at, values + end, 0.f);
    }
    return lines.size();
  }
};

}  // namespace

std::unique_ptr<LineFormat> makeLibsvmFormat() { return std::make_unique<LibsvmFormat>(); }

}  // namespace psd

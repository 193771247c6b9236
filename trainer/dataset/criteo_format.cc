#include <array>
#include <cmath>
#include <cstring>

#include "common/types/category_hash.h"
#include "trainer/dataset/line_format.h"
#include "trainer/dataset/line_numbers.h"
#include "trainer/dataset/line_parser.h"

namespace psd {
namespace {

constexpr size_t kNumberFields = 13, kCategoryFields = 26, kFeatures = kNumberFields + kCategoryFields;
constexpr char kTab = '\t';
constexpr size_t kShortText = sizeof(uint64_t);

/// ln(1 + max(n, 0)). Immutable, so thread-safe.
class Logarithms {
 public:
  Logarithms() {
    for (size_t i = 0; i < table_.size(); ++i) table_[i] = compute(i);
  }
  float of(uint64_t number) const { return number < table_.size() ? table_[number] : compute(number); }

 private:
  static float compute(uint64_t number) {
    return static_cast<float>(std::log1p(static_cast<double>(number)));
  }
  std::array<float, 4096> table_;
};

/// Hashes of the beginnings of texts of up to 8 bytes, by field and length; see categoryId(). Immutable, so
/// thread-safe.
class ShortHashes {
 public:
  ShortHashes() {
    for (uint32_t field = 0; field < kFeatures; ++field) {
      for (size_t length = 0; length <= kShortText; ++length) {
        begins_[field][length] = splitMix(uint64_t{field} << 32 | length);
      }
    }
  }
  /// `word`: the text, filled up with zeros.
  uint64_t idOf(size_t field, size_t length, uint64_t word) const {
    const uint64_t begin = begins_[field][length];
    return length == 0 ? begin : splitMix(begin ^ word);
  }

 private:
  std::array<std::array<uint64_t, kShortText + 1>, kFeatures> begins_;
};

/// An example of the columns' values. A value type.
struct CriteoExample {
  std::array<float, kNumberFields> numbers;
  std::array<uint64_t, kCategoryFields> categories;
  bool label;
};

/// The lowest byte of each byte of `word` that is a tab has its highest bit set, and no lower byte has.
uint64_t tabsIn(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHighest = 0x8080808080808080;
  const uint64_t zeros = word ^ (kOnes * kTab);
  return (zeros - kOnes) & ~zeros & kHighest;
}

/// Parses one line. Owned by one thread.
class CriteoLine : public LineParser {
 public:
  explicit CriteoLine(std::string_view line) : LineParser(line) {}

  /// With `kHash` fills in all of `example`, else only checks the line.
  template <bool kHash>
  bool parse(CriteoExample& example) {
    if (!readLabel(example.label)) return fails("the label is 0 or 1");
    for (float& number : example.numbers) {
      if (!nextField()) return fails("a line has a label, 13 numbers and 26 categories, separated by tabs");
      if (!readNumber<kHash>(number)) return fails("a number is whole, from −2^63 to 2^63 − 1, or empty");
    }
    for (size_t i = 0; i < kCategoryFields; ++i) {
      if (!nextField()) return fails("a line has a label, 13 numbers and 26 categories, separated by tabs");
      readCategory<kHash>(i, example.categories[i]);
    }
    return at_ == end_ || fails("a line has 40 fields");
  }

 private:
  bool nextField() {
    if (at_ == end_ || *at_ != kTab) return false;
    ++at_;
    return true;
  }
  bool atFieldEnd() const { return at_ == end_ || *at_ == kTab; }

  bool readLabel(bool& label) {
    if (at_ == end_ || (*at_ != '0' && *at_ != '1')) return false;
    label = *at_ == '1';
    if (end_ - at_ > 1 && at_[1] != kTab) return false;
    ++at_;
    return true;
  }

  template <bool kKeep>
  bool readNumber(float& value) {
    value = 0;
    if (atFieldEnd()) return true;
    const char* c = at_;
    const bool negative = *c == '-';
    if (negative) ++c;
    uint64_t number = 0;
    if (!readDigits(c, end_, number) || (c != end_ && *c != kTab)) return false;
    constexpr uint64_t kMost = uint64_t{1} << 63;
    if (number >= kMost + (negative ? 1 : 0)) return false;
    at_ = c;
    if constexpr (kKeep) {
      static const Logarithms logarithms;
      if (!negative) value = logarithms.of(number);
    }
    return true;
  }

  template <bool kHash>
  void readCategory(size_t category, uint64_t& id) {
    const auto left = static_cast<size_t>(end_ - at_);
    uint64_t word;
    std::memcpy(&word, at_, kShortText);
    const uint64_t tabs = tabsIn(word);
    const size_t length =
        std::min(tabs != 0 ? static_cast<size_t>(std::countr_zero(tabs)) / 8 : kShortText, left);
    const size_t field = kNumberFields + category;
    if (length < kShortText || left == kShortText || at_[kShortText] == kTab) {
      if constexpr (kHash) {
        static const ShortHashes hashes;
        if (length < kShortText) word &= (uint64_t{1} << (8 * length)) - 1;
        id = hashes.idOf(field, length, word);
      }
      at_ += length;
      return;
    }
    const void* const tab = std::memchr(at_ + kShortText, kTab, left - kShortText);
    const char* const stop = tab ? static_cast<const char*>(tab) : end_;
    if constexpr (kHash) {
      id = categoryId(static_cast<uint32_t>(field), {at_, static_cast<size_t>(stop - at_)});
    }
    at_ = stop;
  }
};

class CriteoFormat : public LineFormat {
 public:
  CriteoFormat() {
    for (uint32_t i = 0; i < kNumberFields; ++i) numberIds_[i] = static_cast<int64_t>(categoryId(i, ""));
  }

  bool check(std::string_view line, FeatureCounts& features, std::string& why) const override {
    CriteoExample example;
    CriteoLine parser(line);
    if (parser.parse<false>(example)) {
      features.add(kFeatures);
      return true;
    }
    why = parser.why();
    return false;
  }

  std::vector<ColumnSpec> columns(const FeatureCounts&) const override {
    return {{std::string(kSparseIds), ElementType::i64, {kFeatures}},
            {std::string(kSparseValues), ElementType::f32, {kFeatures}},
            {std::string(kSparseLabel), ElementType::i64, {}, 2},
            {"numbers", ElementType::f32, {kNumberFields}},
            {"categories", ElementType::i64, {kCategoryFields}}};
  }

  size_t fill(std::span<const std::string_view> lines, const FeatureCounts& features,
              Batch& batch) const override {
    batch.reshape(columns(features), lines.size());
    int64_t* ids = batch.values<int64_t>(kSparseIds).data();
    float* values = batch.values<float>(kSparseValues).data();
    int64_t* label = batch.values<int64_t>(kSparseLabel).data();
    float* numbers = batch.values<float>("numbers").data();
    int64_t* categories = batch.values<int64_t>("categories").data();
    CriteoExample example;
    for (size_t i = 0; i < lines.size(); ++i) {
      prefetchLine(lines, i + kPrefetchLines);
      if (!CriteoLine(lines[i]).parse<true>(example)) return i;
      ids = std::copy_n(numberIds_.data(), kNumberFields, ids);
      std::memcpy(ids, example.categories.data(), sizeof example.categories);
      ids += kCategoryFields;
      values = std::copy_n(example.numbers.data(), kNumberFields, values);
      values = std::fill_n(values, kCategoryFields, 1.f);
      *label++ = example.label ? 1 : 0;
      numbers = std::copy_n(example.numbers.data(), kNumberFields, numbers);
      std::memcpy(categories, example.categories.data(), sizeof example.categories);
      categories += kCategoryFields;
    }
    return lines.size();
  }

 private:
  std::array<int64_t, kNumberFields> numberIds_;
};

}  // namespace

std::unique_ptr<LineFormat> makeCriteoFormat() { return std::make_unique<CriteoFormat>(); }

}  // namespace psd

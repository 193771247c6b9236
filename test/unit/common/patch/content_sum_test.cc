#include "common/patch/content_sum.h"

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/tensor_changes.h"

namespace psd::content_sum_test {
namespace {

using testing::Random;
using testing::randomBytes;

uint64_t wordsOf(const std::vector<std::byte>& tensor) { return (tensor.size() + 7) / 8; }

TEST_CASE("content sums: their values are part of the protocol") {
  CHECK(contentSum({}) == ContentSum());
  std::vector<std::byte> tensor;
  for (int i = 0; i < 21; i++) tensor.push_back(static_cast<std::byte>(i));
  const ContentSum sum = contentSum(tensor);
  CHECK(sum.first == 0xb94d14937011a7c0);
  CHECK(sum.second == 0x4b64b9dd82ae850e);
}

TEST_CASE("content sums: the words are summed one by one, in any order, the last one with zeros") {
  Random random(1);
  for (const uint64_t size : {0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 1000, 4096, 100'003}) {
    INFO("size " << size);
    const std::vector<std::byte> tensor = randomBytes(size, random);
    const uint64_t words = wordsOf(tensor);
    ContentSum sum;
    for (uint64_t i = words; i > 0; i--) sum += contentSum(tensor, i - 1, i);
    CHECK(sum == contentSum(tensor));
    const uint64_t middle = words / 3;
    ContentSum halves = contentSum(tensor, middle, words);
    halves += contentSum(tensor, 0, middle);
    CHECK(halves == sum);
    std::vector<std::byte> padded = tensor;
    padded.resize(words * 8);
    CHECK(contentSum(padded) == sum);
  }
}

TEST_CASE("content sums: changes give the sum of what results") {
  Random random(2);
  for (int round = 0; round < 50; round++) {
    std::vector<std::byte> tensor = randomBytes(random.between(1, 5000), random);
    ContentSum sum = contentSum(tensor);
    ContentSumChanges changes;
    for (uint64_t left = random.between(0, 1000); left > 0; left--) {
      const size_t at = random.below(tensor.size());
      const uint64_t before = contentWord(tensor, at / 8);
      tensor[at] = static_cast<std::byte>(random.between(0, 255));
      changes.add(at / 8, before, contentWord(tensor, at / 8));
    }
    sum += changes.total();
    REQUIRE(sum == contentSum(tensor));
  }
}

TEST_CASE("content sums: each flipped bit changes both halves") {
  Random random(3);
  std::vector<std::byte> tensor = randomBytes(256, random);
  const ContentSum sum = contentSum(tensor);
  for (size_t bit = 0; bit < tensor.size() * 8; bit++) {
    tensor[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const ContentSum changed = contentSum(tensor);
    REQUIRE(changed.first != sum.first);
    REQUIRE(changed.second != sum.second);
    tensor[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST_CASE("content sums: exchanged, moved and repeated words change both halves") {
  // Small numbers, zeros among them, as a model's buffers have.
  std::vector<uint64_t> words(64);
  for (size_t i = 0; i < words.size(); i++) words[i] = i < 8 ? 0 : i / 2;
  const auto sumOf = [&] { return contentSum(std::as_bytes(std::span(words))); };
  const ContentSum sum = sumOf();
  std::set<uint64_t> first{sum.first}, second{sum.second};
  size_t count = 1;
  for (size_t i = 0; i < words.size(); i++) {
    for (size_t j = i + 1; j < words.size(); j++) {
      if (words[i] == words[j]) continue;
      std::swap(words[i], words[j]);
      const ContentSum changed = sumOf();
      std::swap(words[i], words[j]);
      first.insert(changed.first);
      second.insert(changed.second);
      count++;
    }
  }
  std::rotate(words.begin(), words.begin() + 1, words.end());
  first.insert(sumOf().first);
  second.insert(sumOf().second);
  CHECK(first.size() == count + 1);
  CHECK(second.size() == count + 1);
}

TEST_CASE("content sums: two flipped sign bits do not cancel out") {
  std::vector<uint64_t> words(200, 0x3f803f803f803f80);
  std::set<uint64_t> first, second;
  size_t count = 0;
  for (size_t i = 0; i < words.size(); i++) {
    for (size_t j = i + 1; j < words.size(); j++, count++) {
      words[i] ^= uint64_t{1} << 63;
      words[j] ^= uint64_t{1} << 63;
      const ContentSum changed = contentSum(std::as_bytes(std::span(words)));
      words[i] ^= uint64_t{1} << 63;
      words[j] ^= uint64_t{1} << 63;
      first.insert(changed.first);
      second.insert(changed.second);
    }
  }
  // All differ from each other: no collision among 2^14.3 sums.
  CHECK(first.size() == count);
  CHECK(second.size() == count);
}

}  // namespace
}  // namespace psd::content_sum_test

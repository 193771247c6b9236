#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/unit/trainer/dataset/idx_writer.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/mnist.h"
#include "trainer/dataset/synthetic.h"

namespace psd::dataset_test {
namespace {

using Catch::Matchers::Contains;
using testing::idxBytes;
using testing::TempDir;
using testing::writeFile;

/// A tiny valid set in a fresh folder, of which a test damages one file.
struct MnistFolder {
  MnistFolder() { testing::writeTinyMnist(folder, 12, 3); }
  std::string images() const { return folder.file("train-images-idx3-ubyte"); }
  std::string labels() const { return folder.file("train-labels-idx1-ubyte"); }
  /// The error of opening the training split.
  std::string problem() const {
    const auto opened = openMnist(folder.path(), Split::train);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.message().find('\n') == std::string::npos);
    return opened.message();
  }

  TempDir folder;
};

std::vector<float> imagesOf(const Batch& batch) {
  const auto values = batch.values<float>("image");
  return {values.begin(), values.end()};
}

std::vector<int64_t> labelsOf(const Batch& batch) {
  const auto values = batch.values<int64_t>("label");
  return {values.begin(), values.end()};
}

std::string pixelsOf(uint32_t images) { return std::string(images * 28 * 28, '\1'); }

}  // namespace

TEST_CASE("a data set normalises pixels and keeps the requested order") {
  const MnistFolder mnist;
  const auto train = openMnist(mnist.folder.path(), Split::train);
  PSD_REQUIRE_OK(train);
  CHECK((*train)->sampleCount() == 12);
  CHECK(describeColumns((*train)->columns()) == "image f32[1,28,28], label i64 below 10");

  Batch batch;
  const std::vector<uint32_t> indices{11, 0, 5};
  PSD_REQUIRE_OK((*train)->fill(indices, batch));
  REQUIRE(batch.size() == 3);
  REQUIRE(imagesOf(batch).size() == 3 * 784);
  CHECK(labelsOf(batch) == std::vector<int64_t>{1, 0, 5});
  for (size_t i = 0; i < indices.size(); ++i) {
    const float expected = (static_cast<float>(indices[i]) / 255.f - 0.1307f) / 0.3081f;
    CHECK(std::abs(imagesOf(batch)[i * 784] - expected) < 1e-6f);
    CHECK(std::abs(imagesOf(batch)[i * 784 + 783] - expected) < 1e-6f);
  }

  const auto test = openMnist(mnist.folder.path(), Split::test);
  PSD_REQUIRE_OK(test);
  CHECK((*test)->sampleCount() == 3);
}

TEST_CASE("gzip files read like plain ones") {
  const MnistFolder mnist;
  testing::writeGzip(mnist.images() + ".gz", testing::readFile(mnist.images()));
  testing::writeGzip(mnist.labels() + ".gz", testing::readFile(mnist.labels()));
  std::filesystem::remove(mnist.images());
  std::filesystem::remove(mnist.labels());
  const auto train = openMnist(mnist.folder.path(), Split::train);
  PSD_REQUIRE_OK(train);
  Batch batch;
  PSD_REQUIRE_OK((*train)->fill(std::vector<uint32_t>{7}, batch));
  CHECK(labelsOf(batch)[0] == 7);
}

TEST_CASE("a truncated gzip file is named") {
  const MnistFolder mnist;
  testing::writeGzip(mnist.images() + ".gz", testing::readFile(mnist.images()));
  std::filesystem::remove(mnist.images());
  const std::string whole = testing::readFile(mnist.images() + ".gz");
  for (const size_t missing : {1, 10, 40}) {
    writeFile(mnist.images() + ".gz", whole.substr(0, whole.size() - missing));
    CHECK_THAT(mnist.problem(), Contains("train-images-idx3-ubyte.gz") && Contains("truncated gzip"));
  }
}

TEST_CASE("every malformed MNIST file gets one line that names it") {
  const MnistFolder mnist;

  SECTION("missing folder") {
    const auto opened = openMnist(mnist.folder.file("nowhere"), Split::train);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == ErrorCode::io);
    CHECK_THAT(opened.message(), Contains("nowhere: no such folder") && Contains("t10k-labels"));
  }
  SECTION("missing file") {
    std::filesystem::remove(mnist.labels());
    CHECK_THAT(mnist.problem(),
               Contains("neither train-labels-idx1-ubyte nor") && Contains("train-labels-idx1-ubyte.gz"));
  }
  SECTION("empty file") {
    writeFile(mnist.images(), "");
    CHECK_THAT(mnist.problem(), Contains("ends after 0 of 16 header bytes"));
  }
  SECTION("truncated header") {
    writeFile(mnist.images(), idxBytes({12, 28, 28}, "").substr(0, 9));
    CHECK_THAT(mnist.problem(), Contains("ends after 9 of 16 header bytes"));
  }
  SECTION("truncated data") {
    writeFile(mnist.images(), idxBytes({12, 28, 28}, pixelsOf(11)));
    CHECK_THAT(mnist.problem(), Contains("ends after 8624 of 9408 data bytes") && Contains("truncated"));
  }
  SECTION("data beyond the declared end") {
    writeFile(mnist.images(), idxBytes({12, 28, 28}, pixelsOf(12) + "x"));
    CHECK_THAT(mnist.problem(), Contains("continues after the 9408 data bytes"));
  }
  SECTION("foreign magic") {
    writeFile(mnist.images(), "\x89PNG\r\n and so on, more than sixteen bytes");
    CHECK_THAT(mnist.problem(), Contains("begins with 0x89504e47; expected 0x00000803"));
  }
  SECTION("labels where images should be") {
    writeFile(mnist.images(), testing::readFile(mnist.labels()));
    CHECK_THAT(mnist.problem(), Contains("begins with 0x00000801; expected 0x00000803"));
  }
  SECTION("a header with a wrong size") {
    writeFile(mnist.images(), idxBytes({0xffffffff, 0xffffffff, 0xffffffff}, "x"));
    CHECK_THAT(mnist.problem(), Contains("announces more than 4294967296 bytes"));
  }
  SECTION("other image size") {
    writeFile(mnist.images(), idxBytes({1, 32, 32}, std::string(32 * 32, 'x')));
    CHECK_THAT(mnist.problem(), Contains("images of 32x32 pixels; expected 28x28"));
  }
  SECTION("no images") {
    writeFile(mnist.images(), idxBytes({0, 28, 28}, ""));
    CHECK_THAT(mnist.problem(), Contains("holds no images"));
  }
  SECTION("other number of labels") {
    writeFile(mnist.labels(), idxBytes({11}, std::string(11, '\1')));
    CHECK_THAT(mnist.problem(),
               Contains("11 labels for the 12 images in") && Contains("train-labels-idx1-ubyte: "));
  }
  SECTION("label above 9") {
    writeFile(mnist.labels(), idxBytes({12}, std::string(11, '\1') + '\x0a'));
    CHECK_THAT(mnist.problem(), Contains("label 10 at index 11; expected 0 to 9"));
  }
  SECTION("a folder instead of a file") {
    std::filesystem::remove(mnist.images());
    std::filesystem::create_directory(mnist.images());
    CHECK_THAT(mnist.problem(), Contains("neither train-images-idx3-ubyte nor"));
  }
}

TEST_CASE("the synthetic set is a pure function of its arguments") {
  const std::vector<uint32_t> indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Batch first, second;
  PSD_REQUIRE_OK(makeSynthetic(100, Split::train, 7)->fill(indices, first));
  PSD_REQUIRE_OK(makeSynthetic(100, Split::train, 7)->fill(indices, second));
  CHECK(imagesOf(first) == imagesOf(second));
  CHECK(labelsOf(first) == labelsOf(second));
  PSD_REQUIRE_OK(makeSynthetic(100, Split::train, 8)->fill(indices, second));
  CHECK(imagesOf(first) != imagesOf(second));
  PSD_REQUIRE_OK(makeSynthetic(100, Split::test, 7)->fill(indices, second));
  CHECK(imagesOf(first) != imagesOf(second));
}

TEST_CASE("synthetic images are nearest to their own class's mean, in both splits") {
  const auto train = makeSynthetic(2000, Split::train, 3);
  const auto test = makeSynthetic(2000, Split::test, 3);
  REQUIRE(test->sampleCount() == 500);
  Batch batch;
  std::vector<std::vector<float>> means(10, std::vector<float>(784));
  std::vector<int> counts(10);
  for (uint32_t i = 0; i < train->sampleCount(); ++i) {
    PSD_REQUIRE_OK(train->fill(std::vector<uint32_t>{i}, batch));
    ++counts[labelsOf(batch)[0]];
    const auto image = imagesOf(batch);
    for (size_t p = 0; p < 784; ++p) means[labelsOf(batch)[0]][p] += image[p];
  }
  for (int c = 0; c < 10; ++c) {
    CHECK(counts[c] > 120);
    for (float& value : means[c]) value /= static_cast<float>(counts[c]);
  }
  int correct = 0;
  for (uint32_t i = 0; i < test->sampleCount(); ++i) {
    PSD_REQUIRE_OK(test->fill(std::vector<uint32_t>{i}, batch));
    const auto image = imagesOf(batch);
    int nearestClass = -1;
    float nearestDistance = 0;
    for (int c = 0; c < 10; ++c) {
      float distance = 0;
      for (size_t p = 0; p < 784; ++p) {
        distance += (image[p] - means[c][p]) * (image[p] - means[c][p]);
      }
      if (nearestClass < 0 || distance < nearestDistance) {
        nearestClass = c;
        nearestDistance = distance;
      }
    }
    correct += nearestClass == labelsOf(batch)[0];
  }
  CHECK(correct >= 495);
}

TEST_CASE("what --data names: a folder or a listed set") {
  const MnistFolder mnist;
  const auto open = [](const std::string& data) { return openDataset(data, Split::train, {.seed = 1}); };
  PSD_REQUIRE_OK(open(mnist.folder.path()));
  PSD_REQUIRE_OK(open("mnist:" + mnist.folder.path()));
  CHECK((*open("synthetic"))->sampleCount() == kSyntheticSamplesDefault);
  CHECK((*open("synthetic:250"))->sampleCount() == 250);

  for (const std::string data :
       {"synthetic:0", "synthetic:1000001", "synthetic:-1", "synthetic:ten", "synthetic:10x"}) {
    const auto opened = open(data);
    REQUIRE_FALSE(opened.ok());
    CHECK_THAT(opened.message(), Contains(data) && Contains("from 1 to 1000000"));
  }
  const auto unknown = open("cifar");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.message() ==
        "'cifar': no such file, folder or data set; 'psd-trainer help train' lists the data sets");
  CHECK_THAT(open("sythetic:5").message(), Contains("did you mean synthetic?"));
  CHECK_THAT(open("mnist").message(), Contains("expected mnist:DIR"));
}

}  // namespace psd::dataset_test

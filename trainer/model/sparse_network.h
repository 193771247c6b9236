#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/binary_classifier.h"

namespace psd {

/// A classifier of examples with few of many features (trainer/task/sparse_columns.h). A table has a row per
/// feature. Owned by one thread.
class SparseNetwork : public BinaryClassifier {
 public:
  /// `width`: the number of features that each example must have, or ColumnSpec::kAny.
  explicit SparseNetwork(std::vector<TableSpec> tables, uint64_t width = ColumnSpec::kAny);

  std::vector<ColumnSpec> inputs() const override;
  std::vector<TableSpec> tables() const override { return tables_; }
  std::vector<RowLookup> lookUp(const Batch& batch, Purpose purpose) override;
  bool countsWeights() const override { return true; }

 protected:
  /// The features of a batch: of the padded columns those whose value is not 0, which are looked up.
  class Features {
   public:
    explicit Features(const Tensors& batch);

    /// The rows of a table, each times the value of its feature: [features, dim].
    torch::Tensor scaled(const torch::Tensor& rows) const { return rows * values_; }
    /// The sums over each example's features of a tensor [features, dim]: [examples, dim].
    torch::Tensor sums(const torch::Tensor& perFeature) const;
    /// A tensor [features, dim] by example, with zeros in the places of features that the example lacks:
    /// [examples, width · dim].
    torch::Tensor padded(const torch::Tensor& perFeature) const;

   private:
    int64_t examples_, width_;
    torch::Tensor values_;  ///< [features, 1]
    torch::Tensor places_;  ///< [features]: in the flattened columns; undefined: every place has a feature
  };

  /// The rows of a table for the features, [features, dim].
  torch::Tensor rowsOf(const Tensors& batch, size_t table) const {
    return batch.at(tables_[table].name + kRowsSuffix);
  }

 private:
  static constexpr const char* kRowsSuffix = ".rows";

  const std::vector<TableSpec> tables_;
  const uint64_t width_;
};

}  // namespace psd

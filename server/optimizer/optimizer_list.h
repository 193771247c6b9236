#pragma once

#include <variant>

#include "server/optimizer/adagrad.h"
#include "server/optimizer/adam.h"
#include "server/optimizer/adamw.h"
#include "server/optimizer/delayed_nesterov.h"
#include "server/optimizer/rmsprop.h"
#include "server/optimizer/rowwise_adagrad.h"
#include "server/optimizer/sgd.h"

namespace psd {

/// Every optimizer that there is; the first is the default. Adding one = its file and a line here.
///
/// An optimizer is a value type with kName, kLearningRate (the default), visitOptions (each option
/// once: its key, member and range), slots() (what it keeps per weight), visitStep (hands a visitor
/// the step functor, with the scalars of this update worked out in double and then rounded once)
/// and, where options can contradict each other, problem(). A step functor is trivially copyable,
/// has kSlots and `operator()(float& w, float g, float* slots)`. One that must not miss an update, as rows of
/// tables do that a gradient does not touch, has kForTensorsAlone.
///
/// One for embedding tables alone has visitRowStep in place of visitStep. A functor of that is trivially
/// copyable, has kRowSlots, which is 1, `gradient(float w, float g)`, what a value's gradient is with weight
/// decay, and `factor(float meanSquare, float& slot)`, by what that is multiplied and then taken off the
/// value; meanSquare is the mean of its square over the row.
using AnyOptimizer = std::variant<  //
    Sgd,                            //
    Adagrad,                        //
    Rmsprop,                        //
    Adam,                           //
    AdamW,                          //
    DelayedNesterov,                //
    RowwiseAdagrad>;

/// Whether an optimizer is for tensors alone.
template <class Algorithm>
inline constexpr bool kForTensorsAlone = requires {
  Algorithm::kForTensorsAlone;
};

/// Whether an optimizer is for embedding tables alone.
template <class Algorithm>
inline constexpr bool kForRowsAlone = requires {
  typename Algorithm::RowStep;
};

}  // namespace psd

#pragma once

#include <variant>

#include "server/optimizer/adagrad.h"
#include "server/optimizer/adam.h"
#include "server/optimizer/adamw.h"
#include "server/optimizer/rmsprop.h"
#include "server/optimizer/sgd.h"

namespace psd {

/// Every optimizer that there is; the first is the default. Adding one = its file and a line here.
///
/// An optimizer is a value type with kName, kLearningRate (the default), visitOptions (each option
/// once: its key, member and range), slots() (what it keeps per weight), visitStep (hands a visitor
/// the step functor, with the scalars of this update worked out in double and then rounded once)
/// and, where options can contradict each other, problem(). A step functor is trivially copyable,
/// has kSlots and `operator()(float& w, float g, float* slots)`.
using AnyOptimizer = std::variant<  //
    Sgd,                            //
    Adagrad,                        //
    Rmsprop,                        //
    Adam,                           //
    AdamW>;

}  // namespace psd

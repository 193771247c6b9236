// The unit whose precompiled header the targets share: see precompile.cmake.

# psd_emulated_cuda_sources(variable NAME.cu…): the CUDA sources as C++ in the build folder, with each launch rewritten
# to the form of cuda_runtime.h, and everything else unchanged.
function(psd_emulated_cuda_sources variable)
  set(rewritten)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    file(READ ${source} text)
    string(REGEX REPLACE "([A-Za-z]+Kernel(<[A-Za-z]+>)?)[ \n]*<<<([^>]+)>>>\\("
           "::psd::emulated::launch([](auto... a) { \\1(a...); }, \\3)(" text "${text}")
    if(text MATCHES "<<<")
      message(FATAL_ERROR "${source}: a launch that rewrite.cmake does not know: kernels are named …Kernel")
    endif()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "#line 1 \"${source}\"\n@text@" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    list(APPEND rewritten ${file})
  endforeach()
  set(${variable} ${rewritten} PARENT_SCOPE)
endfunction()

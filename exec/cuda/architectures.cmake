# tsr_cuda_architectures(OUT WISH): the architectures that kernels are built for, as CMAKE_CUDA_ARCHITECTURES takes them.
#
# WISH AUTO: those of the GPUs that nvidia-smi finds on this machine, which is what a build takes least time for; without one
# H100's and H200's, and PTX for later GPUs. ALL: every one that is supported. Else WISH is the list itself.
# sm_90 is built as sm_90a, which H100 and H200 have; what is older than sm_80 is not supported (gpu/gpu.c).
function(tsr_cuda_architectures out wish)
  if(wish STREQUAL ALL)
    set(found 80-real 90a-real 90-virtual)
  elseif(wish STREQUAL AUTO)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failed)
    set(found "")
    if(failed STREQUAL "0")
      string(REGEX MATCHALL "[0-9]+[.][0-9]" said "${said}")
      foreach(number ${said})
        string(REPLACE "." "" number ${number})
        if(number EQUAL 90)
          list(APPEND found 90a-real)
        elseif(number GREATER_EQUAL 80)
          list(APPEND found ${number}-real)
        endif()
      endforeach()
      list(REMOVE_DUPLICATES found)
    endif()
    if(NOT found)
      set(found 90a-real 90-virtual)
    endif()
  else()
    set(found ${wish})
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# The engine with a hook at every place that waits, releases or frees: copies of its sources that sites.py makes.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
get_target_property(sources tsr_engine SOURCES)
set(copies)
foreach(source ${sources})
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
  if(NOT path MATCHES "^engine/(program|allocator|check)/")
    set(copy ${PROJECT_BINARY_DIR}/plant/${path})
    add_custom_command(
      OUTPUT ${copy} DEPENDS ${sources} ${PROJECT_SOURCE_DIR}/tests/plant/sites.py
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/plant/sites.py instrument ${path} ${copy})
    list(APPEND copies ${copy})
  else()
    list(APPEND copies ${source})
  endif()
endforeach()
set_property(TARGET tsr_engine PROPERTY SOURCES ${copies} ${PROJECT_SOURCE_DIR}/tests/plant/plant.c)

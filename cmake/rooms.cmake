# A room is a static library made of all .c files of its folder and of the folders in it. It may use
# only the rooms named after it; tests/tidy.py checks the same direction in the #include lines.

set(BATON_WARNINGS
  -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes
  -Wconversion -Wno-sign-conversion -Wdouble-promotion -Wformat=2 -Wcast-qual
  -Wimplicit-fallthrough)

add_library(baton_flags INTERFACE)
target_include_directories(baton_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(baton_flags INTERFACE ${BATON_WARNINGS} -fno-common -fvisibility=hidden
  -ffp-contract=off $<$<CONFIG:Debug>:-O1 -g>)
target_compile_definitions(baton_flags INTERFACE BATON_VERSION="${PROJECT_VERSION}")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_compile_definitions(baton_flags INTERFACE _GNU_SOURCE)
elseif(APPLE)
  target_compile_definitions(baton_flags INTERFACE _DARWIN_C_SOURCE)
endif()
if(BATON_WERROR)
  target_compile_options(baton_flags INTERFACE -Werror)
endif()
if(BATON_SANITIZE)
  target_compile_options(baton_flags INTERFACE -fsanitize=${BATON_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g)
  target_link_options(baton_flags INTERFACE -fsanitize=${BATON_SANITIZE})
endif()
if(BATON_FUZZ)
  target_compile_options(baton_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(baton_flags INTERFACE Threads::Threads m)

# baton_room(NAME [rooms and libraries it stands on ...])
function(baton_room name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.c
    ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*.c)
  if(NOT sources)
    return()
  endif()
  add_library(bt_${name} STATIC ${sources})
  target_link_libraries(bt_${name} PUBLIC baton_flags)
  foreach(dependency ${ARGN})
    if(TARGET ${dependency})
      target_link_libraries(bt_${name} PUBLIC ${dependency})
    endif()
  endforeach()
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/room.cmake)
    include(${CMAKE_CURRENT_SOURCE_DIR}/${name}/room.cmake)
  endif()
endfunction()

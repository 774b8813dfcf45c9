# The page: ui/* as arrays in one C file, with an entity tag each.
file(GLOB bt_page_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ui/*.html
  ${PROJECT_SOURCE_DIR}/ui/*.css ${PROJECT_SOURCE_DIR}/ui/*.js ${PROJECT_SOURCE_DIR}/ui/*.svg)
set(bt_page_c ${CMAKE_BINARY_DIR}/generated/page_files.c)
add_custom_command(
  OUTPUT ${bt_page_c}
  COMMAND ${CMAKE_COMMAND} "-DFILES=${bt_page_sources}" -DOUTPUT=${bt_page_c}
          -P ${PROJECT_SOURCE_DIR}/ui/embed.cmake
  DEPENDS ${bt_page_sources} ${PROJECT_SOURCE_DIR}/ui/embed.cmake
  COMMENT "Embedding the page"
  VERBATIM)
target_sources(bt_serve PRIVATE ${bt_page_c})

//! Checks of the project's structure: dependencies between crates, import cycles, module documentation and lengths of
//! files, fuzz targets, and links and paths in Markdown files.

#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/doors.rs"]
mod doors;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/fuzzing.rs"]
mod fuzzing;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/shelves.rs"]
mod shelves;
#[path = "tidy/tree.rs"]
mod tree;

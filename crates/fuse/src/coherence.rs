//! Page-cache coherence: keeps what the kernel has cached of files (sizes, times, pages, mappings, attributes) in
//! agreement with what other clients do.

pub(crate) mod kernel_size;
pub(crate) mod mmap;
pub(crate) mod page_twins;
pub(crate) mod recent_attrs;
pub(crate) mod set_sizes;
pub(crate) mod sync_mount;
pub(crate) mod write_back;
pub(crate) mod writers;

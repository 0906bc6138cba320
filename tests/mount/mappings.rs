//! Shared mappings of a file that threads use at the same time as `write` on the same mount.

use crate::files::mounted;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGE: usize = 4096;
const PAGES: usize = 96;
/// Number of threads. Half of the threads store to the mapping, and the other half call `write`.
const THREADS: usize = 8;

/// A shared mapping of a file, as an array of atomic words.
struct Mapped(&'static [AtomicU64]);

impl Mapped {
    fn of(file: &File) -> Mapped {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is page-aligned, so it is aligned for words. All accesses are atomic and within its
        // length, and drop unmaps it after the last access.
        unsafe {
            let at = mmap(std::ptr::null_mut(), PAGES * PAGE, both, MapFlags::SHARED, file, 0).unwrap();
            Mapped(std::slice::from_raw_parts(at.cast::<AtomicU64>(), PAGES * PAGE / 8))
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: all threads that use the mapping have ended before it is dropped.
        unsafe { munmap(self.0.as_ptr().cast_mut().cast(), PAGES * PAGE).unwrap() }
    }
}

/// Returns which word of a page a thread changes, and the value that the thread stores there.
fn word(page: usize, thread: usize) -> (usize, u64) {
    (page * PAGE / 8 + thread * 31 + 5, (page * THREADS + thread) as u64 + 0x0101_0101_0101_0101)
}

/// Threads change different words of each page: half of the threads through the mapping, and half with `write`. In even
/// rounds, they share one open file; in odd rounds, each thread opens the file itself. No change may be lost.
#[test]
fn writes_and_mapping_stores_to_the_same_pages_are_all_kept() {
    for access in ["direct", "page"] {
        let Some((_dir, cluster, place)) = mounted(&["--access", access]) else { return };
        for round in 0..6 {
            let (name, own) = (format!("f{round}"), round % 2 == 1);
            let open = || OpenOptions::new().read(true).write(true).open(place.at(&name)).unwrap();
            File::create(place.at(&name)).unwrap().set_len((PAGES * PAGE) as u64).unwrap();
            let file = open();
            let mapped = Mapped::of(&file);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (shared, words) = (&file, mapped.0);
                    let change = move || {
                        let opened = own.then(open);
                        let file = opened.as_ref().unwrap_or(shared);
                        for (at, value) in (0..PAGES).map(|page| word(page, thread)) {
                            match thread % 2 {
                                0 => words[at].store(value, SeqCst),
                                _ => file.write_all_at(&value.to_ne_bytes(), at as u64 * 8).unwrap(),
                            }
                        }
                    };
                    scope.spawn(change);
                }
            });
            let all = || (0..PAGES).flat_map(|page| (0..THREADS).map(move |thread| word(page, thread)));
            for (at, value) in all() {
                assert_eq!(mapped.0[at].load(SeqCst), value, "mapped, access={access}, word {at} of {name}");
            }
            drop(mapped);
            drop(file);
            let (here, there) = (fs::read(place.at(&name)).unwrap(), cluster.run(["cat", &format!("/{name}")]));
            assert!(here == there, "access={access}");
            for (at, value) in all() {
                assert_eq!(here[at * 8..at * 8 + 8], value.to_ne_bytes(), "access={access}, word {at} of {name}");
            }
        }
        place.unmount();
    }
}

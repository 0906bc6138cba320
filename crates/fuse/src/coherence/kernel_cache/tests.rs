//! Tests of the record of the kernel's cached data.

use super::*;
use crate::coherence::testing::attrs;

#[test]
fn pages_belong_to_the_opened_version_whatever_attributes_the_kernel_receives() {
    let cache = KernelCache::default();
    cache.entry_sent(7, &attrs(1, 5));
    assert!(!cache.pages_are_of(7, &attrs(1, 5)), "the file was never opened");
    assert!(cache.pages_are_of(7, &attrs(1, 5)));
    cache.attrs_sent(7, &attrs(2, 5));
    cache.entry_sent(7, &attrs(2, 5));
    assert!(!cache.pages_are_of(7, &attrs(2, 5)));
    assert!(cache.pages_are_of(7, &attrs(2, 5)) && !cache.pages_are_of(8, &attrs(2, 5)));
    cache.pages_became(7, &attrs(3, 5));
    assert!(cache.pages_are_of(7, &attrs(3, 5)), "the kernel wrote this version");
    cache.written_directly(7);
    cache.pages_became(7, &attrs(4, 5));
    assert!(cache.is_written_directly(7) && !cache.pages_are_of(7, &attrs(4, 5)), "another client wrote a part of it");
    cache.pages_became(7, &attrs(5, 5));
    assert!(!cache.is_written_directly(7) && cache.pages_are_of(7, &attrs(5, 5)));
}

#[test]
fn the_record_has_the_size_of_the_kernel_or_none() {
    let cache = KernelCache::default();
    cache.entry_sent(7, &attrs(1, 5));
    assert!(cache.has_size(7, 5), "the kernel created its inode from these attributes");
    cache.grew(7, 3);
    cache.grew(7, 9);
    assert!(cache.has_size(7, 9));
    cache.may_end_at(7, 9);
    assert!(cache.has_size(7, 9));
    cache.may_end_at(7, 8);
    cache.grew(7, 9);
    assert!(!cache.has_size(7, 9) && !cache.has_size(7, 8));
    let doubts = cache.doubts();
    cache.shown(7, 8, doubts);
    assert!(cache.has_size(7, 8));
    // The cached size becomes unknown between the calls of `doubts` and `shown`, so `shown` has no effect.
    cache.is_unknown(7);
    cache.shown(7, 8, doubts);
    assert!(!cache.has_size(7, 8));
    cache.shown(7, 8, cache.doubts());
    assert!(cache.has_size(7, 8) && !cache.has_size(8, 8));
    cache.forgotten(7);
    assert!(!cache.is_known(7) && !cache.has_size(7, 8));
}

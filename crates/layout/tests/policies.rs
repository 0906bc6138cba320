//! Policies from and to their xattrs, with the messages people get for bad ones.

use layout::policy::{NAMES, format_size, is_policy_name, parse_size};
use layout::{Cache, DistributionId, Policy};
use proptest::prelude::*;

fn set(name: &str, value: &str) -> Result<Policy, String> {
    let mut policy = Policy::default();
    policy.set(name.as_bytes(), value.as_bytes()).map_err(|e| e.to_string())?;
    Ok(policy)
}

#[test]
fn every_part_is_set_from_text() {
    assert_eq!(set("weir.stripe_unit", "64K").unwrap().stripe_unit, 65536);
    assert_eq!(set("weir.stripe_unit", " 64 ").unwrap().stripe_unit, 64);
    assert_eq!(set("weir.stripe_count", "8").unwrap().stripe_count, 8);
    assert_eq!(set("weir.threshold", "256KiB").unwrap().threshold, 256 << 10);
    assert_eq!(set("weir.cache", "delegation").unwrap().cache, Cache::Delegation);
    assert_eq!(set("weir.distribution", "simple_stripe").unwrap().distribution, DistributionId::SimpleStripe);
}

#[test]
fn messages_say_what_to_write() {
    let message = |name, value| set(name, value).unwrap_err();
    assert_eq!(
        message("weir.stripe", "1"),
        "no policy is called \"weir.stripe\"; there are weir.stripe_unit, weir.stripe_count, weir.mirrors, weir.threshold, weir.cache, \
         weir.distribution"
    );
    assert_eq!(
        message("weir.stripe_unit", "big"),
        "weir.stripe_unit: \"big\" is not a size; write bytes or a number with K, M, G or T, as in 64K or 1M"
    );
    assert_eq!(
        message("weir.stripe_unit", "100"),
        "weir.stripe_unit: stripe unit 100 is not a multiple of 64 from 64 to 1073741824 bytes"
    );
    assert_eq!(
        message("weir.stripe_count", "257"),
        "weir.stripe_count: \"257\" is not a number from 0 (all iods) to 256"
    );
    assert_eq!(message("weir.cache", "yes"), "weir.cache: \"yes\" is none of none, delegation");
    assert!(message("weir.threshold", "99999999T").contains("is not a size"));
}

#[test]
fn xattrs_lie_over_the_default_and_foreign_ones_are_passed_over() {
    let xattrs: [(&[u8], &[u8]); 3] =
        [(b"weir.stripe_unit", b"128K"), (b"author", b"me"), (b"weir.stripe_count", b"2")];
    let policy = Policy::default().with_xattrs(xattrs).unwrap();
    assert_eq!(policy, Policy { stripe_unit: 128 << 10, stripe_count: 2, ..Policy::default() });
    let bad: [(&[u8], &[u8]); 1] = [(b"weir.stripe_unit", b"\xff")];
    assert!(Policy::default().with_xattrs(bad).is_err());
    assert!(is_policy_name(b"weir.later") && !is_policy_name(b"weirdo"));
}

#[test]
fn sizes_that_are_none() {
    for text in ["", "K", "-1", "1X", "1KK", "1iB", "1.5M", "16777216T", "99999999999999999999", "1é"] {
        assert_eq!(parse_size(text), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn sizes_round_trip(n in any::<u64>(), shift in 0u32..64) {
        prop_assert_eq!(parse_size(&format_size(n << shift)), Some(n << shift));
    }

    #[test]
    fn text_of_a_policy_sets_it_again(
        unit in 1u64..=(1 << 24), count in 0u32..=256, mirrors in 1u32..=2, threshold in 0u64..(1 << 40), cached in any::<bool>(),
    ) {
        let policy = Policy {
            stripe_unit: unit * 64,
            stripe_count: count,
            mirrors,
            threshold,
            cache: if cached { Cache::Delegation } else { Cache::None },
            distribution: DistributionId::SimpleStripe,
        };
        let mut again = Policy::default();
        for name in NAMES {
            again.set(name.as_bytes(), policy.get(name).unwrap().as_bytes()).unwrap();
        }
        prop_assert_eq!(again, policy);
    }

    #[test]
    fn any_bytes_are_a_policy_or_an_error(name in 0..NAMES.len(), value in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut policy = Policy::default();
        if policy.set(NAMES[name].as_bytes(), &value).is_err() {
            prop_assert_eq!(policy, Policy::default());
        }
    }
}

//! Maximum lengths of variable-length items: every item has a row in this table or a bound in its RFC.

/// Bounds by `struct.field`, `union.arm` body or typedef, as Rust expressions in the generated code.
///
/// An item needs a row only if the RFC gives no bound. For values that exceed some server limits (names, links,
/// attribute words) NFS defines a specific error. The bounds of these items are larger than the server's limits, so
/// that the request still decodes and the server can return this error.
const BOUNDS: &[(&str, &str)] = &[
    // Maximum lengths of types that many messages use.
    ("attrlist4", "limits::ATTR_BODY_MAX"),
    ("bitmap4", "limits::BITMAP_WORDS_MAX"),
    ("sec_oid4", "limits::OPAQUE_MAX"),
    ("utf8string", "limits::OPAQUE_MAX"),
    ("component4", "limits::NAME_DECODE_MAX"),
    ("linktext4", "limits::PATH_DECODE_MAX"),
    ("pathname4", "limits::LIST_MAX"),
    ("secret4", "limits::OPAQUE_MAX"),
    ("netaddr4.na_r_netid", "limits::OPAQUE_MAX"),
    ("netaddr4.na_r_addr", "limits::OPAQUE_MAX"),
    ("gsshandle4_t", "limits::OPAQUE_MAX"),
    ("notifylist4", "limits::ATTR_BODY_MAX"),
    // Maximum lengths of file data.
    ("READ4resok.data", "limits::PAYLOAD_MAX"),
    ("WRITE4args.data", "limits::PAYLOAD_MAX"),
    ("data4.d_data", "limits::PAYLOAD_MAX"),
    ("app_data_block4.adb_pattern", "limits::PAYLOAD_MAX"),
    ("xattrvalue4", "limits::XATTR_VALUE_DECODE_MAX"),
    // Maximum lengths of opaque bodies whose format depends on a type number.
    ("layout_content4.loc_body", "limits::LAYOUT_BODY_MAX"),
    ("layouthint4.loh_body", "limits::LAYOUT_BODY_MAX"),
    ("device_addr4.da_addr_body", "limits::LAYOUT_BODY_MAX"),
    ("layoutupdate4.lou_body", "limits::LAYOUT_BODY_MAX"),
    ("layoutreturn_file4.lrf_body", "limits::LAYOUT_BODY_MAX"),
    ("threshold_item4.thi_hintlist", "limits::LAYOUT_BODY_MAX"),
    ("sec_label4.slai_data", "limits::OPAQUE_MAX"),
    ("fs_locations_server4.fls_info", "limits::OPAQUE_MAX"),
    // Maximum lengths of security parameters and digests.
    ("copy_confirm_auth_priv.ccap_shared_secret_mic", "limits::OPAQUE_MAX"),
    ("ssv_mic_plain_tkn4.smpt_orig_plain", "limits::OPAQUE_MAX"),
    ("ssv_mic_tkn4.smt_hmac", "limits::OPAQUE_MAX"),
    ("ssv_seal_plain_tkn4.sspt_confounder", "limits::OPAQUE_MAX"),
    ("ssv_seal_plain_tkn4.sspt_orig_plain", "limits::OPAQUE_MAX"),
    ("ssv_seal_plain_tkn4.sspt_pad", "limits::OPAQUE_MAX"),
    ("ssv_seal_cipher_tkn4.ssct_iv", "limits::OPAQUE_MAX"),
    ("ssv_seal_cipher_tkn4.ssct_encr_data", "limits::OPAQUE_MAX"),
    ("ssv_seal_cipher_tkn4.ssct_hmac", "limits::OPAQUE_MAX"),
    ("SET_SSV4args.ssa_ssv", "limits::OPAQUE_MAX"),
    ("SET_SSV4args.ssa_digest", "limits::OPAQUE_MAX"),
    ("SET_SSV4resok.ssr_digest", "limits::OPAQUE_MAX"),
    // Maximum lengths of the arrays whose elements are structs or unions.
    ("COMPOUND4args.argarray", "limits::COMPOUND_OPS_MAX as usize"),
    ("COMPOUND4res.resarray", "limits::COMPOUND_OPS_MAX as usize"),
    ("CB_COMPOUND4args.argarray", "limits::COMPOUND_OPS_MAX as usize"),
    ("CB_COMPOUND4res.resarray", "limits::COMPOUND_OPS_MAX as usize"),
    ("entry4", "limits::DIRECTORY_PAGE_MAX"),
    ("LISTXATTRS4resok.lxr_names", "limits::DIRECTORY_PAGE_MAX"),
    ("nfsv4_1_file_layout_ds_addr4.nflda_stripe_indices", "limits::STRIPE_COUNT_MAX"),
    ("nfsv4_1_file_layout_ds_addr4.nflda_multipath_ds_list", "limits::STRIPE_COUNT_MAX"),
    ("nfsv4_1_file_layout4.nfl_fh_list", "limits::STRIPE_COUNT_MAX"),
    ("ff_mirror4.ffm_data_servers", "limits::STRIPE_COUNT_MAX"),
    ("referring_call_list4.rcl_referring_calls", "limits::SLOTS_MAX as usize"),
    ("CB_SEQUENCE4args.csa_referring_call_lists", "limits::SLOTS_MAX as usize"),
    ("TEST_STATEID4args.ts_stateids", "limits::STATEIDS_MAX"),
    ("TEST_STATEID4resok.tsr_status_codes", "limits::STATEIDS_MAX"),
    ("fattr4_acl", "limits::LIST_MAX"),
    ("nfsacl41.na41_aces", "limits::LIST_MAX"),
    ("fattr4_fs_layout_types", "limits::LIST_MAX"),
    ("fattr4_layout_types", "limits::LIST_MAX"),
    ("mdsthreshold4.mth_hints", "limits::LIST_MAX"),
    ("fs_location4.server", "limits::LIST_MAX"),
    ("fs_locations4.locations", "limits::LIST_MAX"),
    ("fs_locations_item4.fli_entries", "limits::LIST_MAX"),
    ("fs_locations_info4.fli_items", "limits::LIST_MAX"),
    ("multipath_list4", "limits::LIST_MAX"),
    ("ff_device_addr4.ffda_versions", "limits::LIST_MAX"),
    ("ff_data_server4.ffds_fh_vers", "limits::LIST_MAX"),
    ("ff_layout4.ffl_mirrors", "limits::STRIPE_COUNT_MAX"),
    ("ff_ioerr4.ffie_errors", "limits::LIST_MAX"),
    ("ff_layoutreturn4.fflr_ioerr_report", "limits::STRIPE_COUNT_MAX"),
    ("ff_layoutreturn4.fflr_iostats_report", "limits::STRIPE_COUNT_MAX"),
    ("copy_to_auth_priv.ctap_source", "limits::LIST_MAX"),
    ("COPY4args.ca_source_server", "limits::LIST_MAX"),
    ("COPY_NOTIFY4resok.cnr_source_server", "limits::LIST_MAX"),
    ("SECINFO4resok", "limits::LIST_MAX"),
    ("BACKCHANNEL_CTL4args.bca_sec_parms", "limits::LIST_MAX"),
    ("CREATE_SESSION4args.csa_sec_parms", "limits::LIST_MAX"),
    ("ssv_sp_parms4.ssp_hash_algs", "limits::LIST_MAX"),
    ("ssv_sp_parms4.ssp_encr_algs", "limits::LIST_MAX"),
    ("ssv_prot_info4.spi_handles", "limits::LIST_MAX"),
    ("GETDEVICELIST4resok.gdlr_deviceid_list", "limits::LIST_MAX"),
    ("LAYOUTGET4resok.logr_layout", "limits::LIST_MAX"),
    ("LAYOUTERROR4args.lea_errors", "limits::LIST_MAX"),
    ("CB_NOTIFY4args.cna_changes", "limits::LIST_MAX"),
    ("CB_NOTIFY_DEVICEID4args.cnda_changes", "limits::LIST_MAX"),
    ("read_plus_res4.rpr_contents", "limits::LIST_MAX"),
];

/// Returns the bound of the first name in `names` that has a row in the table. The caller passes the most specific name
/// first.
pub fn bound(names: &[String]) -> Option<&'static str> {
    names.iter().find_map(|name| BOUNDS.iter().find(|(key, _)| key == name)).map(|(_, bound)| *bound)
}

/// Returns the rows of the table whose names are not in `asked`, the names that the generator looked up.
pub fn unused(asked: &std::collections::HashSet<String>) -> Vec<&'static str> {
    BOUNDS.iter().map(|(key, _)| *key).filter(|key| !asked.contains(*key)).collect()
}

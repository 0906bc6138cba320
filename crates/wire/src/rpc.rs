//! ONC RPC version 2 (RFC 5531): call and reply headers, credentials and record marking.

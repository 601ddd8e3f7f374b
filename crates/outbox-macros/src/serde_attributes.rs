//! Serde attributes that apply to the payload of a variant. Other serde attributes of an enum and
//! its variants, such as `tag` and `rename`, are about serde's own form of the enum.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse as _, ParseStream};
use syn::{Attribute, Meta, Result, Token};

/// Attributes for the payload: `deny_unknown_fields` and `rename_all_fields` of the enum,
/// `rename_all` of the variant, which has precedence.
pub(crate) fn of_payload(of_enum: &[Attribute], of_variant: &[Attribute]) -> Result<TokenStream> {
    let (mut deny, mut rename) = (None, None);
    for meta in metas(of_enum)? {
        if meta.path().is_ident("deny_unknown_fields") {
            deny = Some(quote! { #[serde(#meta)] });
        } else if meta.path().is_ident("rename_all_fields") {
            rename = Some(match meta {
                Meta::List(list) => {
                    let tokens = list.tokens;
                    quote! { #[serde(rename_all(#tokens))] }
                }
                Meta::NameValue(pair) => {
                    let value = pair.value;
                    quote! { #[serde(rename_all = #value)] }
                }
                path @ Meta::Path(_) => quote! { #[serde(#path)] },
            });
        }
    }
    for meta in metas(of_variant)?.into_iter().filter(|meta| meta.path().is_ident("rename_all")) {
        rename = Some(quote! { #[serde(#meta)] });
    }
    Ok(quote! { #deny #rename })
}

/// The serde attributes of a field, unchanged.
pub(crate) fn of_field(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("serde"))
}

fn metas(attributes: &[Attribute]) -> Result<Vec<Meta>> {
    let mut metas = Vec::new();
    for attribute in of_field(attributes) {
        let parse = |input: ParseStream<'_>| input.parse_terminated(Meta::parse, Token![,]);
        metas.extend(attribute.parse_args_with(parse)?);
    }
    Ok(metas)
}

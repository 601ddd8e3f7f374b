//! The texts of compile errors. Behaviour of the generated code is tested in the crate `outbox`.

use proc_macro2::TokenStream;
use quote::quote;

use crate::derive::expand;

/// The compile error of a derive input.
#[track_caller]
fn error(input: TokenStream) -> String {
    match expand(&syn::parse2(input).expect("an item")) {
        Ok(code) => panic!("no error, but {code}"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn assert_accepted(input: TokenStream) {
    if let Err(error) = expand(&syn::parse2(input).expect("an item")) {
        panic!("{error}");
    }
}

#[test]
fn a_struct_needs_an_event_type() {
    let missing = "the event type of `Placed` is missing: #[message(type = \"order.placed\")]";
    assert_eq!(error(quote! { struct Placed { order: u64 } }), missing);
    assert_eq!(error(quote! { #[message(key = "{order}")] struct Placed { order: u64 } }), missing);
    assert_eq!(error(quote! { #[message(type = "")] struct Placed; }), "an event type cannot be empty");
    assert_eq!(
        error(quote! { #[message(type = "a\nb")] struct Placed; }),
        "an event type cannot contain control characters"
    );
    let long = "x".repeat(256);
    assert_eq!(
        error(quote! { #[message(type = #long)] struct Placed; }),
        "an event type has at most 255 characters, this one has 256"
    );
}

#[test]
fn an_unknown_key_is_answered_with_the_known_ones() {
    assert_eq!(
        error(quote! { #[message(type = "placed", topic = "orders")] struct Placed; }),
        "unknown key `topic`: expected one of `type`, `version`, `upcast`, `aggregate`, `aggregate_type`, \
         `key`, `tenant`, `dedup`, `tags`, `crate`"
    );
    assert_eq!(
        error(quote! { enum Order { #[message(order_key = "x")] Placed } }),
        "unknown key `order_key`: expected one of `type`, `version`, `upcast`, `aggregate`, \
         `aggregate_type`, `key`, `tenant`, `dedup`, `tags`"
    );
    assert_eq!(
        error(quote! { #[message(type = "order")] enum Order { Placed } }),
        "each variant is an event type of its own: write `type` at the variants"
    );
    assert_eq!(
        error(quote! { enum Order { #[message(crate = "outbox")] Placed } }),
        "write `crate` at the enum"
    );
    assert_eq!(
        error(quote! { #[message(type = "a")] #[message(type = "b")] struct Placed; }),
        "`type` is given twice"
    );
}

#[test]
fn a_template_with_an_unknown_field_lists_the_fields() {
    assert_eq!(
        error(quote! {
            #[message(type = "placed", key = "customer-{custommer}")]
            struct Placed { order: u64, r#type: u8 }
        }),
        "`Placed` has no field `custommer`: it has `order`, `type`"
    );
    assert_eq!(
        error(quote! { #[message(type = "placed", tenant = "{0}")] struct Placed; }),
        "`Placed` has no field `0`: it has no fields"
    );
    assert_eq!(
        error(quote! { #[message(type = "placed", tags(order = "{1}"))] struct Placed(u64); }),
        "`Placed` has no field `1`: it has `0`"
    );
    assert_eq!(
        error(quote! {
            #[message(tags(course = "{course}"))]
            enum Course { Defined { course: String }, Closed }
        }),
        "variant `Closed` has no field `course`: it has no fields"
    );
    assert_accepted(quote! {
        #[message(tags(course = "{course}"))]
        enum Course { Defined { course: String }, #[message(tags(course = "all"))] Closed }
    });
}

#[test]
fn a_template_that_is_no_format_text_is_refused() {
    for (template, expected) in [
        ("order-{order", "`{` without `}`: a brace itself is written `{{`"),
        ("order-order}", "`}` without `{`: a brace itself is written `}}`"),
        ("order-{}", "a placeholder needs the name of a field: `{field}`"),
        ("order-{:05}", "a placeholder needs the name of a field: `{field}`"),
        ("{order:width$}", "`{order:width$}`: width and precision must be numbers, not arguments"),
        ("", "an empty text: leave the key out"),
    ] {
        let input = quote! { #[message(type = "placed", key = #template)] struct Placed { order: u64 } };
        assert_eq!(error(input), expected, "{template}");
    }
    for template in ["{order}", "{ order }", "{order:05}", "{{{order}}}", "{{order}}", "é-{order:?}"] {
        assert_accepted(quote! { #[message(type = "placed", key = #template)] struct Placed { order: u64 } });
    }
}

#[test]
fn an_aggregate_has_a_constant_type_and_an_id() {
    let form = "an aggregate is written `type/id`, such as \"order/{order}\"; \
                for the type alone write `aggregate_type`";
    for (aggregate, expected) in [
        ("order", form),
        ("/{order}", form),
        ("order/", form),
        ("{order}/1", "the type of an aggregate is constant: only the id may have placeholders"),
        ("order/{number}", "`Placed` has no field `number`: it has `order`"),
    ] {
        let input =
            quote! { #[message(type = "placed", aggregate = #aggregate)] struct Placed { order: u64 } };
        assert_eq!(error(input), expected, "{aggregate}");
    }
    for attribute in [
        quote! { #[message(type = "placed", aggregate = "order/{order}", aggregate_type = "cart")] },
        quote! { #[message(type = "placed", aggregate_type = "order", aggregate = "cart/{order}")] },
    ] {
        assert_eq!(
            error(quote! { #attribute struct Placed { order: u64 } }),
            "two aggregate types: \"order\" and \"cart\""
        );
    }
}

#[test]
fn a_version_is_a_number_from_one_and_an_upcast_needs_an_older_one() {
    for version in [quote! { 0 }, quote! { 4294967296 }] {
        assert_eq!(
            error(quote! { #[message(type = "placed", version = #version)] struct Placed; }),
            "a version is a whole number from 1"
        );
    }
    for attribute in [
        quote! { #[message(type = "placed", upcast = convert)] },
        quote! { #[message(type = "placed", version = 1, upcast = convert)] },
    ] {
        assert_eq!(
            error(quote! { #attribute struct Placed; }),
            "`upcast` converts older versions: set `version` to 2 or more"
        );
    }
}

#[test]
fn tags_have_names_and_templates() {
    assert_eq!(
        error(quote! { #[message(type = "placed", tags())] struct Placed; }),
        "no tags: write `tags(name = \"{field}\")`"
    );
    assert_eq!(
        error(quote! { #[message(type = "placed", tags("a=b" = "c"))] struct Placed; }),
        "the name of a tag is not empty and holds no `=`"
    );
}

#[test]
fn two_variants_of_one_event_type_are_refused() {
    assert_eq!(
        error(quote! { enum Order { Placed, #[message(type = "Placed")] Sent } }),
        "the event type \"Placed\" is that of `Placed` already"
    );
}

#[test]
fn unions_generic_types_and_empty_enums_are_refused() {
    assert_eq!(
        error(quote! { #[message(type = "placed")] union Placed { a: u8, b: i8 } }),
        "a union cannot be a message: derive `Message` for a struct or an enum"
    );
    for generics in [quote! { <T> }, quote! { <'a> }, quote! { <const N: usize> }] {
        assert!(
            error(quote! { #[message(type = "placed")] struct Placed #generics; })
                .starts_with("a message cannot have generic parameters"),
        );
    }
    assert_eq!(error(quote! { enum Order {} }), "`Order` has no variants, so no event types");
}

#[test]
fn generated_code_names_everything_by_the_given_path() {
    let input = quote! {
        #[message(crate = "shop::events")]
        enum Order { Placed { order: u64 }, #[message(version = 2, upcast = convert)] Sent }
    };
    let code = expand(&syn::parse2(input).unwrap()).unwrap().to_string();
    assert!(code.contains("shop :: events :: IntoEvent") && !code.contains(":: outbox"), "{code}");
}
